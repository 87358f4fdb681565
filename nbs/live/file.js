// Drop a file: Magika's network on 2,048 of its bytes, what Magika makes of that, and what ranks do.
import { alphaSlider, el, exampleButtons, latest, markOf, percent, speaker, start, triangle } from "./page.js";
import { argmax, byRanks, kind, level, softmax } from "./u2c.js";

const UNKNOWN = "I don’t know", SHOWN = 5, SIDE = 1024, BLOCK = 4096, PADDING = 256, LEAST = 8, PREVIEW = 336;

// ---- from a file to what the network says ----

const isSpace = (byte) => byte === 32 || (byte >= 9 && byte <= 13);

function trimmed(bytes) {
  let from = 0, to = bytes.length;
  while (from < to && isSpace(bytes[from])) from++;
  while (to > from && isSpace(bytes[to - 1])) to--;
  return [from, to];
}

// What `both_ends` of u2c.bench.files makes of a file; null where there is too little to see.
export function bothEnds(first, last) {
  const begin = first.subarray(trimmed(first)[0]).subarray(0, SIDE);
  const end = last.subarray(0, trimmed(last)[1]).slice(-SIDE);
  if (begin.length < LEAST) return null;
  const seen = new Int32Array(2 * SIDE).fill(PADDING);
  seen.set(begin);
  seen.set(end, 2 * SIDE - end.length);
  return seen;
}

// A large file is not read whole: two blocks are enough.
async function read(blob) {
  const part = async (from, to) => new Uint8Array(await blob.slice(from, to).arrayBuffer());
  const size = blob.size;
  return { size, first: await part(0, BLOCK), last: await part(Math.max(0, size - BLOCK), size) };
}

async function ask({ ort, session }, seen) {
  const bytes = new ort.Tensor("int32", seen, [1, 2 * SIDE]);
  const { logits, u, p_value } = await session.run({ bytes });
  return { logits: Array.from(logits.data), u: u.data[0], p: p_value.data[0] };
}

// Magika's own rule: the most probable kind, if it reaches its threshold; else text, or a binary file.
export function magikaSays({ kinds, texts, thresholds, renamed }, logits) {
  const probs = softmax(logits), best = argmax(probs), sure = probs[best] >= thresholds[best];
  const name = renamed[kinds[best]] ?? kinds[best];
  return { answer: sure ? name : texts[best] ? "txt" : "unknown", p: probs[best], declined: !sure };
}

// ---- words ----

function best(data, probs, most) {
  return data.names.map((name, k) => ({ name, p: probs[k] })).sort((a, b) => b.p - a.p).slice(0, most);
}

function meaning(data, probs) {
  const [first, second] = best(data, probs, 2);
  return {
    "known-known": ["Known, and clear.", `It resembles files that the network has a name for: ${first.name}.`],
    "known-unknown": ["Known, but in doubt.",
      `It resembles files that the network has names for: ${first.name}, ${second.name} or another.`],
    "unknown-known": ["Unknown.", "It does not resemble the known files that it was compared with."],
  }[kind(probs)];
}

function magikaWords(data, said) {
  const p = `probability ${said.p.toFixed(2)}`;
  if (!said.declined) return `Magika itself answers: ${data.about[said.answer] ?? said.answer} (${p}).`;
  return `Magika itself declines: ${said.answer === "txt" ? "some text" : "some binary file"} (${p}).`;
}

// ---- parts of the page ----

function bars() {
  const row = (last) => el("tr", {}, el("th", { scope: "row" }, last ? UNKNOWN : ""),
    el("td", { class: "live-rank" }, el("span", { class: "live-bar" }, el("i")), el("span", { class: "live-number" })));
  const rows = Array.from({ length: SHOWN + 1 }, (_, i) => row(i === SHOWN));
  const table = el("table", { class: "live-bars live-wide" },
    el("caption", { class: "live-hidden" }, "The most probable kinds, and the probability of abstaining"),
    el("tbody", {}, ...rows));
  const show = (data, probs) => {
    const lines = [...best(data, probs, SHOWN), { name: UNKNOWN, p: probs.at(-1) }];
    const top = Math.max(...lines.map(({ p }) => p));
    lines.forEach(({ name, p }, i) => {
      const [head, cell] = rows[i].cells;
      head.textContent = name;
      cell.querySelector("i").style.width = `${100 * p}%`;
      cell.querySelector(".live-number").textContent = p.toFixed(2);
      cell.classList.toggle("live-best", p === top);
    });
  };
  return { table, show };
}

// The beginning of a file as text, with a dot for what is none.
function preview(bytes) {
  const shown = Array.from(bytes.subarray(0, PREVIEW));
  return shown.map((b) => (b === 10 ? "\n" : b >= 32 && b < 127 ? String.fromCharCode(b) : "·")).join("");
}

// A place to drop a file on, with a button that opens the browser's dialogue.
function dropZone(view, take) {
  const input = el("input", {
    type: "file", class: "live-hidden", tabindex: -1, "aria-hidden": "true",
    onchange: () => { if (input.files[0]) take(input.files[0]); input.value = ""; },
  });
  const choose = el("button", { type: "button", class: "live-button", onclick: () => input.click() }, "Choose a file");
  const zone = el("div", { class: "live-sheet live-drop" }, view, el("span", { class: "live-over-drop" }, "Drop it here"));
  const over = (e) => { e.preventDefault(); zone.classList.add("live-hover"); };
  const out = () => zone.classList.remove("live-hover");
  zone.addEventListener("dragover", over);
  zone.addEventListener("dragleave", out);
  zone.addEventListener("drop", (e) => {
    e.preventDefault();
    out();
    if (e.dataTransfer.files[0]) take(e.dataTransfer.files[0]);
  });
  return [zone, el("div", { class: "live-row" }, choose, input, el("span", { class: "live-hint" }, "or drop one on the square"))];
}

function thumbnail(example) {
  return el("span", { class: "live-suffix", "aria-hidden": "true" }, `.${example.file.split(".").pop()}`);
}

// ---- all of it ----

async function build(root, parts, loaded) {
  const { data } = parts, voice = speaker();
  const table = bars(), plane = triangle(["rank"], data.names.length);
  const view = el("pre", { class: "live-bytes", "aria-label": "The beginning of the file" });
  const verdict = el("p", { class: "live-verdict live-words" }), sense = el("p", { class: "live-sense" });
  const rival = el("p", { class: "live-rival" }), time = el("span");
  let alpha = 0.95, said = null;

  const strangeness = (p) => `${percent(p)} of the ${data.rows} known files are at least as strange (p\u00a0=\u00a0${p.toPrecision(2)}).`;

  const show = () => {
    const tempered = said.logits.map((v) => v / data.tau);
    const probs = byRanks(tempered, said.p, level(data.turns, alpha), data.power);
    const answer = data.names[argmax(probs)] ?? UNKNOWN, [head, text] = meaning(data, probs);
    const magika = magikaSays(data, said.logits);
    table.show(data, probs);
    plane.place({ rank: probs }, `The place of the answer in the triangle of uncertainties: ${answer}.`);
    verdict.textContent = answer;
    sense.replaceChildren(el("strong", {}, head), ` ${text} ${strangeness(said.p)}`);
    rival.textContent = magikaWords(data, magika);
    voice.say(`${answer}. ${head} ${strangeness(said.p)} ${rival.textContent}`);
    root.answer = { ...said, alpha, probs, magika };  // for the curious, and for the tests
  };

  const answer = latest(async ({ blob, name, example }) => {
    let file;
    try { file = await read(blob); }
    catch { return refuse(name, "This browser cannot read it."); }
    const input = bothEnds(file.first, file.last);
    examples.mark(example);
    view.textContent = `${name}, ${file.size.toLocaleString("en")} bytes\n\n${preview(file.first)}`;
    if (!input) return refuse(name, "It has fewer than 8 bytes, which says too little: Magika does not ask its network.");
    const began = performance.now();
    said = { ...await ask(parts, input), input };
    time.textContent = ` The last answer took ${Math.max(1, Math.round(performance.now() - began))} ms.`;
    root.classList.remove("live-empty");
    show();
  });

  const refuse = (name, why) => {
    said = null;
    root.classList.add("live-empty");
    verdict.textContent = "No answer";
    sense.textContent = `${name}: ${why}`;
    rival.textContent = "";
    voice.say(sense.textContent);
  };

  const choose = async (example) => {
    const address = new URL(example.file, import.meta.url);
    return answer({ blob: await (await fetch(address)).blob(), name: example.file, example });
  };
  const examples = exampleButtons(data.examples, thumbnail, choose);
  const slider = alphaSlider(data.alphas, alpha, "of the known files are to be answered", (value) => { alpha = value; if (said) show(); });
  const zone = dropZone(view, (blob) => answer({ blob, name: blob.name, example: null }));

  root.append(
    el("div", { class: "live-top" },
      el("div", { class: "live-left" }, ...zone),
      el("div", { class: "live-answer" },
        el("p", { class: "live-over" }, markOf("rank"), "RankU2C says"), verdict, sense, rival,
        el("p", { class: "live-over" }, "Or try"), examples.list, slider)),
    el("div", { class: "live-below" }, table.table, plane.plot),
    el("p", { class: "live-foot" }, loaded, time, " Nothing leaves your browser."), voice.region);
  await choose(data.examples[0]);
}

start("file", build);
