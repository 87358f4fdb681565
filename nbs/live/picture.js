// Drop a picture: EfficientNet-Lite0, and what share of a few known photographs is at least as strange.
import { alphaSlider, el, exampleButtons, latest, markOf, percent, speaker, start, triangle } from "./page.js";
import { asTensor, middle } from "./pixels.js";
import { argmax, byRanks, kind, level } from "./u2c.js";

const UNKNOWN = "I don’t know", SHOWN = 5, CROP = 224;

// ---- from a file to what the network says ----

// As Pillow reads it: no colour management. A transparent picture is put on white.
async function decode(blob) {
  const bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none" });
  const { width, height } = bitmap, canvas = el("canvas", { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  return { rgb: withoutAlpha(context.getImageData(0, 0, width, height).data), width, height };
}

function withoutAlpha(rgba) {
  const rgb = new Uint8Array(rgba.length / 4 * 3);
  for (let i = 0, j = 0; i < rgba.length; i += 4) {
    rgb[j++] = rgba[i]; rgb[j++] = rgba[i + 1]; rgb[j++] = rgba[i + 2];
  }
  return rgb;
}

async function ask({ ort, session }, crop) {
  const images = new ort.Tensor("float32", asTensor(crop), [1, 3, CROP, CROP]);
  const { logits, u, p_value } = await session.run({ images });
  return { logits: Array.from(logits.data), u: u.data[0], p: p_value.data[0] };
}

// ---- words ----

function best(classes, probs, most) {
  return classes.map((name, k) => ({ name, p: probs[k] })).sort((a, b) => b.p - a.p).slice(0, most);
}

function meaning(classes, probs) {
  const [first, second] = best(classes, probs, 2);
  return {
    "known-known": ["Known, and clear.", `The network finds a thing that it has a name for: ${first.name}.`],
    "known-unknown": ["Known, but in doubt.",
      `The network finds something that it has names for, and cannot tell which: ${first.name}, ${second.name} or another.`],
    "unknown-known": ["Unknown.", "The network finds little that it has a name for."],
  }[kind(probs)];
}

// ---- parts of the page ----

function bars() {
  const row = (last) => el("tr", {}, el("th", { scope: "row" }, last ? UNKNOWN : ""),
    el("td", { class: "live-rank" }, el("span", { class: "live-bar" }, el("i")), el("span", { class: "live-number" })));
  const rows = Array.from({ length: SHOWN + 1 }, (_, i) => row(i === SHOWN));
  const table = el("table", { class: "live-bars live-wide" },
    el("caption", { class: "live-hidden" }, "The most probable classes, and the probability of abstaining"),
    el("tbody", {}, ...rows));
  const show = (classes, probs) => {
    const lines = [...best(classes, probs, SHOWN), { name: UNKNOWN, p: probs.at(-1) }];
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

function paint(canvas, crop) {
  const context = canvas.getContext("2d"), image = context.createImageData(CROP, CROP);
  for (let i = 0; i < CROP * CROP; i++) {
    image.data.set([crop[3 * i], crop[3 * i + 1], crop[3 * i + 2], 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
}

// A place to drop a file on, with a button that opens the browser's dialogue.
function dropZone(view, take) {
  const input = el("input", {
    type: "file", accept: "image/*", class: "live-hidden", tabindex: -1, "aria-hidden": "true",
    onchange: () => { if (input.files[0]) take(input.files[0]); input.value = ""; },
  });
  const choose = el("button", { type: "button", class: "live-button", onclick: () => input.click() }, "Choose a picture");
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

// ---- all of it ----

async function build(root, parts, loaded) {
  const { data } = parts, { classes } = data, voice = speaker();
  const table = bars(), plane = triangle(["rank"], classes.length);
  const view = el("canvas", { width: CROP, height: CROP, class: "live-view", role: "img", "aria-label": "What the network sees" });
  const verdict = el("p", { class: "live-verdict live-words" }), sense = el("p", { class: "live-sense" }), time = el("span");
  let alpha = 0.9, said = null;

  const strangeness = (p) => `${percent(p)} of the ${data.rows} known crops are at least as strange (p\u00a0=\u00a0${p.toPrecision(2)}).`;

  const show = () => {
    const probs = byRanks(said.logits, said.p, level(data.turns, alpha), data.power);
    const answer = classes[argmax(probs)] ?? UNKNOWN, [head, text] = meaning(classes, probs);
    table.show(classes, probs);
    plane.place({ rank: probs }, `The place of the answer in the triangle of uncertainties: ${answer}.`);
    verdict.textContent = answer;
    sense.replaceChildren(el("strong", {}, head), ` ${text} ${strangeness(said.p)}`);
    voice.say(`${answer}. ${head} ${strangeness(said.p)}`);
    root.answer = { ...said, alpha, probs };  // for the curious, and for the tests
  };

  const answer = latest(async ({ blob, example }) => {
    let picture;
    try { picture = await decode(blob); }
    catch { return refuse(blob); }
    const began = performance.now();
    const crop = middle(picture.rgb, picture.width, picture.height);
    said = { ...await ask(parts, crop), picture, crop };
    time.textContent = ` The last answer took ${Math.round(performance.now() - began)} ms.`;
    examples.mark(example);
    root.classList.remove("live-empty");
    paint(view, crop);
    show();
  });

  const refuse = (blob) => {
    root.classList.add("live-empty");
    examples.mark(null);
    verdict.textContent = "No picture";
    sense.textContent = `This browser cannot read ${blob.name ?? "this file"} as a picture.`;
    voice.say(sense.textContent);
  };

  const address = (example) => new URL(example.file, import.meta.url).href;
  const choose = async (example) => answer({ blob: await (await fetch(address(example))).blob(), example });
  const thumbnail = (example) => el("img", { src: address(example), alt: "", class: "live-thumbnail" });
  const examples = exampleButtons(data.examples, thumbnail, choose);
  const slider = alphaSlider(data.alphas, alpha, "of the known crops are to be answered", (value) => { alpha = value; if (said) show(); });
  const zone = dropZone(view, (blob) => answer({ blob, example: null }));

  root.append(
    el("div", { class: "live-top" },
      el("div", { class: "live-left" }, ...zone),
      el("div", { class: "live-answer" },
        el("p", { class: "live-over" }, markOf("rank"), "RankU2C says"), verdict, sense,
        el("p", { class: "live-over" }, "Or try"), examples.list, slider)),
    el("div", { class: "live-below" }, table.table, plane.plot),
    el("p", { class: "live-foot" }, loaded, time, " Nothing leaves your browser."), voice.region);
  await choose(data.examples[0]);
}

start("picture", build);
