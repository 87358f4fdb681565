// Draw a digit: a canvas, the small network of the embedded benchmark, and four methods side by side.
import { alphaSlider, el, exampleButtons, latest, markOf, percent, speaker, start, triangle } from "./page.js";
import { asDigit } from "./pixels.js";
import { argmax, byOdds, byRanks, kind, level, link, rejectOrClassify, threshold, turningPoint, unified } from "./u2c.js";

const METHODS = { rc: "RC", u2c: "U2C", rank: "RankU2C", left_out: "LeftOutU2C" };
const UNKNOWN = "I don’t know", SIZE = 280, PEN = 24, STEP = SIZE / 28;

// ---- what the network says ----

async function ask({ ort, session }, pixels) {
  const images = new ort.Tensor("float32", pixels, [1, 28, 28]);
  const { logits, u, p_value, joint } = await session.run({ images });
  return { logits: Array.from(logits.data), u: u.data[0], p: p_value.data[0], joint: joint.data[0] };
}

export function methods(data, { logits, u, p, joint }, alpha) {
  const { weight, turns } = data.learned;
  const f = logits.map((v) => v / data.tau), i = data.alphas.indexOf(alpha);
  return {
    rc: rejectOrClassify(f, u, threshold(data.in_sample, alpha)),
    u2c: unified(f, link(data.links[i], u)),
    rank: byRanks(f, p, level(data.turns, alpha), data.power),
    left_out: byOdds(f, weight * joint + turningPoint(turns, alpha)),
  };
}

// ---- words ----

const nameOf = (classes, k) => classes[k] ?? UNKNOWN;

function meaning(classes, probs) {
  const order = classes.map((name, k) => [probs[k], name]).sort((a, b) => b[0] - a[0]);
  return {
    "known-known": ["Known, and clear.", `It resembles the digits that the network knows, and ${order[0][1]} stands out.`],
    "known-unknown": ["Known, but in doubt.",
      `It resembles the digits that the network knows, but it may be ${order[0][1]} or ${order[1][1]}.`],
    "unknown-known": ["Unknown.", "It does not resemble the digits that the network knows."],
  }[kind(probs)];
}

const strangeness = (p) => `${percent(p)} of known digits are at least as strange (p\u00a0=\u00a0${p.toPrecision(2)}).`;

// ---- parts of the page ----

function bars(classes) {
  const cell = (m) => el("td", { class: `live-${m}` },
    el("span", { class: "live-bar" }, el("i")), el("span", { class: "live-number" }));
  const rows = [...classes, UNKNOWN].map((name) =>
    el("tr", {}, el("th", { scope: "row" }, name), ...Object.keys(METHODS).map(cell)));
  const heads = Object.entries(METHODS).map(([m, name]) =>
    el("th", { scope: "col", class: `live-${m}` }, markOf(m), name));
  const table = el("table", { class: "live-bars" },
    el("caption", { class: "live-hidden" }, "Probabilities of the eight digits and of abstaining, by four methods"),
    el("thead", {}, el("tr", {}, el("td"), ...heads)), el("tbody", {}, ...rows));
  const show = (probs) => Object.keys(METHODS).forEach((m, j) => rows.forEach((row, k) => {
    const at = row.cells[j + 1], p = probs[m][k];
    at.querySelector("i").style.width = `${100 * p}%`;
    at.querySelector(".live-number").textContent = p.toFixed(2);
    at.classList.toggle("live-best", k === argmax(probs[m]));
  }));
  return { table, show };
}

function paint(canvas, pixels) {
  const context = canvas.getContext("2d"), image = context.createImageData(28, 28);
  pixels.forEach((v, i) => { image.data.set([255, 255, 255, Math.round(255 * v)], 4 * i); });
  context.putImageData(image, 0, 0);
  return canvas;
}

const small = (attributes) => el("canvas", { width: 28, height: 28, class: "live-pixels", ...attributes });

function decoded(text) {
  return Float32Array.from(atob(text), (c) => c.charCodeAt(0) / 255);
}

// ---- the sheet of paper: mouse, finger, pen, or arrow keys and the space bar ----

class Paper {
  constructor(changed) {
    this.changed = changed;
    this.canvas = el("canvas", {
      width: SIZE, height: SIZE, class: "live-paper", tabindex: 0, role: "application",
      "aria-label": "Drawing area. Arrow keys move the pen, the space bar sets it down or lifts it, Escape clears.",
    });
    this.context = this.canvas.getContext("2d", { willReadFrequently: true });
    Object.assign(this.context, { lineWidth: PEN, lineCap: "round", lineJoin: "round", strokeStyle: "#fff" });
    this.cursor = el("span", { class: "live-cursor", "aria-hidden": "true" });
    this.node = el("div", { class: "live-sheet" }, this.canvas, this.cursor);
    this.at = { x: SIZE / 2, y: SIZE / 2 };
    this.down = false;
    this.foreign = false;  // shows an example, which the next stroke replaces
    this.listen();
    this.moveCursor();
  }

  listen() {
    const on = (name, f) => this.canvas.addEventListener(name, f);
    on("pointerdown", (e) => this.press(e));
    on("pointermove", (e) => this.drag(e));
    for (const name of ["pointerup", "pointercancel"]) on(name, () => { this.dragging = false; });
    on("keydown", (e) => this.key(e));
  }

  place(e) {
    const box = this.canvas.getBoundingClientRect();
    return { x: (e.clientX - box.left) * SIZE / box.width, y: (e.clientY - box.top) * SIZE / box.height };
  }

  press(e) {
    if (e.button) return;
    this.canvas.setPointerCapture(e.pointerId);
    this.dragging = true;
    this.down = false;
    this.at = this.place(e);
    this.stroke(this.at);
  }

  drag(e) {
    if (!this.dragging) return;
    const several = e.getCoalescedEvents?.() ?? [];
    for (const part of several.length ? several : [e]) this.stroke(this.place(part));
  }

  key(e) {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key];
    if (!move && e.key !== " " && e.key !== "Escape") return;
    e.preventDefault();
    if (e.key === "Escape") return this.clear();
    if (e.key === " ") {
      this.down = !this.down;
      if (this.down) this.stroke(this.at);
    } else {
      const [x, y] = [this.at.x + move[0] * STEP, this.at.y + move[1] * STEP].map((v) => Math.min(Math.max(v, 0), SIZE));
      if (this.down) this.stroke({ x, y });
      this.at = { x, y };
    }
    this.moveCursor();
  }

  moveCursor() {
    this.cursor.style.left = `${100 * this.at.x / SIZE}%`;
    this.cursor.style.top = `${100 * this.at.y / SIZE}%`;
    this.cursor.classList.toggle("live-down", this.down);
  }

  stroke(to) {
    if (this.foreign) this.wipe();
    const c = this.context;
    c.beginPath();
    c.moveTo(this.at.x, this.at.y);
    c.lineTo(to.x, to.y);
    c.stroke();
    this.at = to;
    this.moveCursor();
    this.changed(this.digit());
  }

  wipe() {
    this.context.clearRect(0, 0, SIZE, SIZE);
    this.foreign = false;
  }

  clear() {
    this.wipe();
    this.down = false;
    this.moveCursor();
    this.changed(null);
  }

  digit() {
    const { data } = this.context.getImageData(0, 0, SIZE, SIZE), ink = new Float32Array(SIZE * SIZE);
    for (let i = 0; i < ink.length; i++) ink[i] = data[4 * i + 3] / 255;
    return asDigit(ink, SIZE, SIZE);
  }

  show(pixels) {
    this.wipe();
    this.foreign = true;
    this.down = false;
    this.moveCursor();
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(paint(small(), pixels), 0, 0, SIZE, SIZE);
    this.changed(pixels);
  }
}

// ---- all of it ----

async function build(root, parts, loaded) {
  const { data } = parts, { classes } = data, voice = speaker();
  const table = bars(classes), plane = triangle(Object.keys(METHODS), classes.length);
  const seen = small({ role: "img", "aria-label": "What the network sees" });
  const verdict = el("p", { class: "live-verdict" }), sense = el("p", { class: "live-sense" });
  const time = el("span");
  let alpha = 0.95, said = null, sheets = 0;  // sheets: how often the paper was cleared

  const show = () => {
    const probs = methods(data, said, alpha), [head, text] = meaning(classes, probs.rank);
    const answer = nameOf(classes, argmax(probs.rank));
    table.show(probs);
    verdict.textContent = answer;
    sense.replaceChildren(el("strong", {}, head), ` ${text} ${strangeness(said.p)}`);
    const words = Object.entries(METHODS).map(([m, name]) => `${name}: ${nameOf(classes, argmax(probs[m]))}`).join(", ");
    plane.place(probs, `The place of each answer in the triangle of uncertainties. ${words}.`);
    voice.say(`${answer}. ${head} ${strangeness(said.p)}`);
    root.answer = { ...said, alpha, probs };  // for the curious, and for the tests
  };

  const answer = latest(async ([pixels, sheet]) => {
    const began = performance.now(), out = await ask(parts, pixels);
    if (sheet !== sheets) return;  // cleared meanwhile
    said = { ...out, input: pixels };
    time.textContent = ` The last answer took ${Math.max(1, Math.round(performance.now() - began))} ms.`;
    paint(seen, pixels);
    root.classList.remove("live-empty");
    show();
  });

  const empty = () => {
    said = null;
    sheets += 1;
    root.classList.add("live-empty");
    verdict.textContent = "Draw a digit";
    sense.textContent = "from 0 to 7, or anything else.";
    paint(seen, new Float32Array(784));
    voice.say("The paper is empty.");
  };

  const paper = new Paper((pixels) => {
    if (!paper.foreign) examples.mark(null);
    return pixels ? answer([pixels, sheets]) : empty();
  });
  const choose = (example) => { paper.show(decoded(example.pixels)); examples.mark(example); };
  const examples = exampleButtons(data.examples, (e) => paint(small({ "aria-hidden": "true" }), decoded(e.pixels)), choose);
  const clear = el("button", { type: "button", class: "live-button", onclick: () => paper.clear() }, "Clear");
  const slider = alphaSlider(data.alphas, alpha, "of known digits are to be answered", (value) => { alpha = value; if (said) show(); });

  root.append(
    el("div", { class: "live-top" },
      el("div", { class: "live-left" }, paper.node, el("div", { class: "live-row" }, clear,
        el("span", { class: "live-hint" }, "Draw here: mouse, finger, or arrow keys and space"))),
      el("div", { class: "live-answer" },
        el("div", { class: "live-head" }, el("div", {}, el("p", { class: "live-over" }, markOf("rank"), "RankU2C says"), verdict),
          el("figure", {}, seen, el("figcaption", {}, "what it sees"))),
        sense, el("p", { class: "live-over" }, "Or try"), examples.list, slider)),
    el("div", { class: "live-below" }, table.table, plane.plot),
    el("p", { class: "live-foot" }, loaded, time, " Nothing leaves your browser."), voice.region);
  choose(data.examples[0]);
}

start("draw", build);
