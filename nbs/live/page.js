// What both live pages share: elements, the runtime and its failures, the triangle, words and numbers.

export function el(tag, attributes = {}, ...children) {
  return dressed(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return dressed(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function dressed(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export const megabytes = (n) => (n < 1e6 ? `${Math.ceil(n / 1e3)} kB` : `${(n / 1e6).toFixed(1)} MB`);

export function percent(p) {
  const x = 100 * p;
  return `${x >= 10 || x === 0 ? Math.round(x) : x.toPrecision(2).replace(/\.0$/, "")}\u00a0%`;
}

// ---- loading ----

const here = new URL("./", import.meta.url);

async function json(name) {
  const answer = await fetch(new URL(name, here));
  if (!answer.ok) throw new Error(`${name}: ${answer.status} ${answer.statusText}`);
  return answer.json();
}

export function note(root, title, text) {
  root.replaceChildren(el("div", { class: "live-note", role: "alert" }, el("strong", {}, title), el("p", {}, text)));
}

// The first missing part of a copy of the site, in words; empty if all are there.
function missing(assets, name) {
  return assets.runtime.missing || assets[name].missing || "";
}

async function loadRuntime({ module }) {
  const url = new URL(module, here), ort = await import(url);
  ort.env.wasm.numThreads = 1;  // more would need headers that plain web servers do not send
  ort.env.wasm.wasmPaths = new URL("./", url).href;
  return ort;
}

async function loadAll(assets, name) {
  const part = assets[name], ort = await loadRuntime(assets.runtime);
  const network = new URL(part.network, here).href;
  const [session, data] = await Promise.all([ort.InferenceSession.create(network), json(part.data)]);
  return { ort, session, data };
}

// Load everything for a page and hand it to `build`; say plainly why, if something is not there.
export async function start(name, build) {
  const root = document.getElementById(name);
  let assets;
  try { assets = await json("assets.json"); }
  catch (error) { return note(root, "This copy of the site was built without the live pages.", error.message); }
  const lacks = missing(assets, name);
  if (lacks) return note(root, "This copy of the site was built without this page's network.", lacks);
  if (typeof WebAssembly !== "object") {
    return note(root, "This browser does not run WebAssembly.", "The network on this page needs it. "
      + "Some browsers switch it off in their strictest mode; any other current browser has it.");
  }
  const sizes = `${megabytes(assets.runtime.bytes)} of runtime and ${megabytes(assets[name].bytes)} of network`;
  root.replaceChildren(el("p", { class: "live-loading", role: "status" }, `Loading ${sizes} …`));
  let parts;
  try { parts = await loadAll(assets, name); }
  catch (error) { return note(root, "The network could not be started.", error.message ?? String(error)); }
  root.replaceChildren();
  await build(root, parts, loaded(assets, name));
}

function loaded(assets, name) {
  const { runtime, [name]: part } = assets;
  return `Loaded: onnxruntime-web ${runtime.version} (${megabytes(runtime.bytes)}), the network with its score `
    + `(${megabytes(part.network_bytes)}), ${part.others} (${megabytes(part.bytes - part.network_bytes)}).`;
}

// Run the newest request only: answers to older ones would come too late.
export function latest(run) {
  let busy = false, next = null;
  return async function request(value) {
    next = { value };
    if (busy) return;
    busy = true;
    try {
      while (next) { const { value } = next; next = null; await run(value); }
    } finally { busy = false; }
  };
}

// ---- parts of a page ----

export function alphaSlider(alphas, chosen, what, change) {
  const shown = el("output", { class: "live-alpha" });
  const input = el("input", { type: "range", min: 0, max: alphas.length - 1, step: 1, value: alphas.indexOf(chosen) });
  const update = () => {
    const alpha = alphas[input.value], text = `α = ${alpha.toFixed(2)}: ${Math.round(100 * alpha)}\u00a0% ${what}`;
    shown.textContent = text;
    input.setAttribute("aria-valuetext", text);
    return alpha;
  };
  input.addEventListener("input", () => change(update()));
  update();
  return el("label", { class: "live-slider" }, shown, input);
}

export function exampleButtons(examples, thumbnail, choose) {
  const buttons = examples.map((example) => el("button", {
    type: "button", class: "live-example", "aria-pressed": "false", title: example.about,
    onclick: () => choose(example),
  }, thumbnail(example), el("span", {}, example.name)));
  const mark = (example) => buttons.forEach((b, i) => b.setAttribute("aria-pressed", examples[i] === example));
  return { list: el("div", { class: "live-examples", role: "group", "aria-label": "Examples" }, ...buttons), mark };
}

// A message for screen readers, once changes have come to rest.
export function speaker(wait = 600) {
  const region = el("p", { class: "live-hidden", role: "status", "aria-live": "polite" });
  let timer;
  const say = (text) => {
    clearTimeout(timer);
    timer = setTimeout(() => { region.textContent = text; }, wait);
  };
  return { region, say };
}

// ---- the triangle: P(abstain) to the right, the largest class probability upwards ----

const SPAN = 200, MARKS = {
  // one fits into the other: where methods agree, all are seen
  left_out: () => svg("circle", { r: 12.5 }),
  rc: () => svg("circle", { r: 9.5 }),
  u2c: () => svg("rect", { x: -6, y: -6, width: 12, height: 12 }),
  rank: () => svg("path", { d: "M0 -5.5 L5.5 0 L0 5.5 L-5.5 0 Z" }),
};

export function markOf(method) {
  return svg("svg", { class: `live-mark live-${method}`, viewBox: method === "left_out" ? "-14 -14 28 28" : "-11 -11 22 22", "aria-hidden": "true" }, MARKS[method]());
}

function axes() {
  const text = (x, y, words, more = {}) => svg("text", { x, y, ...more }, words);
  const ticks = [0, 0.5, 1].flatMap((v) => [
    text(v * SPAN, SPAN + 17, v, { "text-anchor": "middle" }),
    text(-14, SPAN - v * SPAN + 4, v, { "text-anchor": "end" }),
  ]);
  return [
    svg("path", { class: "live-axis", d: `M0 0 V${SPAN} H${SPAN}` }), ...ticks,
    text(SPAN / 2, SPAN + 34, "epistemic: P(abstain)", { "text-anchor": "middle" }),
    text(0, 0, "largest class probability", {
      "text-anchor": "middle", transform: `translate(-44 ${SPAN / 2}) rotate(-90)`,
    }),
  ];
}

export function triangle(methods, classes) {
  const area = `M0 0 L${SPAN} ${SPAN} L0 ${SPAN - SPAN / classes} Z`;
  const marks = methods.map((m) => [m, svg("g", { class: `live-point live-${m}` }, MARKS[m]())]);
  const label = (x, y, words, anchor = "start") => svg("text", { class: "live-corner", x, y, "text-anchor": anchor }, words);
  const plot = svg("svg", { class: "live-triangle", viewBox: `-56 -12 ${SPAN + 70} ${SPAN + 52}`, role: "img" },
    svg("path", { class: "live-area", d: area }), ...axes(),
    label(20, 8, "sure of a class"), label(12, SPAN - 42, "in doubt"), label(SPAN + 8, SPAN - 84, "I don’t know", "end"),
    svg("path", { class: "live-edge", d: `M0 0 L${SPAN} ${SPAN}` }), ...marks.map(([, mark]) => mark));
  const place = (probs, name) => {
    marks.forEach(([m, mark]) => {
      const p = probs[m], x = p.at(-1), y = Math.max(...p.slice(0, -1));
      mark.setAttribute("transform", `translate(${x * SPAN} ${SPAN - y * SPAN})`);
    });
    plot.setAttribute("aria-label", name);
  };
  return { plot, place };
}
