// From what a person gives to what a network takes. Pictures here are arrays of numbers, line by line.

// ---- a drawing, as MNIST prepares its digits ----

const BOX = 20, SIDE = 28;

function boundingBox(ink, width, height, least = 0.05) {
  let [left, top, right, bottom] = [width, height, -1, -1];
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      if (ink[y * width + x] <= least) continue;
      left = Math.min(left, x); right = Math.max(right, x);
      top = Math.min(top, y); bottom = Math.max(bottom, y);
    }
  }
  return right < 0 ? null : { left, top, w: right - left + 1, h: bottom - top + 1 };
}

// Shares of the old cells in each new one: [first old cell, their weights], which sum to 1.
function overlaps(from, to) {
  return Array.from({ length: to }, (_, i) => {
    const start = (i * from) / to, end = ((i + 1) * from) / to, first = Math.floor(start);
    const cells = Math.max(1, Math.ceil(end - 1e-9) - first);
    const share = (k) => (Math.min(end, first + k + 1) - Math.max(start, first + k)) / (end - start);
    return [first, Array.from({ length: cells }, (_, k) => share(k))];
  });
}

function averaged(ink, width, { left, top, w, h }, toW, toH) {
  const across = overlaps(w, toW), down = overlaps(h, toH), out = new Float32Array(toW * toH);
  down.forEach(([y0, rows], y) => across.forEach(([x0, columns], x) => {
    let sum = 0;
    rows.forEach((a, j) => columns.forEach((b, i) => {
      sum += a * b * ink[(top + y0 + j) * width + left + x0 + i];
    }));
    out[y * toW + x] = sum;
  }));
  return out;
}

function centreOfMass(ink, w, h) {
  let [mass, x, y] = [0, 0, 0];
  ink.forEach((v, i) => { mass += v; x += v * (i % w); y += v * Math.floor(i / w); });
  return mass ? { x: x / mass, y: y / mass } : { x: (w - 1) / 2, y: (h - 1) / 2 };
}

// The longer side becomes 20 pixels, each the mean of what it covers; the centre of mass goes to the middle of 28 x 28.
export function asDigit(ink, width, height) {
  const box = boundingBox(ink, width, height), out = new Float32Array(SIDE * SIDE);
  if (!box) return out;
  const scale = BOX / Math.max(box.w, box.h);
  const [w, h] = [box.w, box.h].map((side) => Math.max(1, Math.round(side * scale)));
  const small = averaged(ink, width, box, w, h), centre = centreOfMass(small, w, h);
  const place = (mass, side) => Math.min(Math.max(Math.round((SIDE - 1) / 2 - mass), 0), SIDE - side);
  const [left, top] = [place(centre.x, w), place(centre.y, h)];
  for (let y = 0; y < h; y++) out.set(small.subarray(y * w, (y + 1) * w), (top + y) * SIDE + left);
  return out;
}

// ---- a photograph, as Pillow and torchvision prepare it: shorter side 256 by bicubic interpolation, middle 224 ----

const BITS = 22;  // Pillow's weights are whole multiples of 2^-22, and so are these: results are equal, not only close

function bicubic(x, a = -0.5) {
  x = Math.abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

// For each new pixel: [first old pixel, whole weights]. Shrinking widens the filter, so that nothing is skipped.
function filters(from, to) {
  const scale = from / to, wide = Math.max(scale, 1), support = 2 * wide;
  return Array.from({ length: to }, (_, i) => {
    const centre = (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support + 0.5));
    const end = Math.min(from, Math.trunc(centre + support + 0.5));
    const raw = Array.from({ length: end - first }, (_, k) => bicubic((first + k - centre + 0.5) / wide));
    const sum = raw.reduce((s, v) => s + v, 0);
    const whole = (v) => Math.trunc((v / sum) * 2 ** BITS + (v < 0 ? -0.5 : 0.5));
    return [first, raw.map(whole)];
  });
}

const toByte = (sum) => Math.min(255, Math.max(0, Math.floor((sum + 2 ** (BITS - 1)) / 2 ** BITS)));

// One direction: `lines` lines of `from` pixels; steps say how far apart pixels and lines are in memory.
function resample(source, lines, from, to, { pixel, line }, out, outStep) {
  if (from === to) return source;
  filters(from, to).forEach(([first, weights], i) => {
    for (let j = 0; j < lines; j++) {
      for (let channel = 0; channel < 3; channel++) {
        let sum = 0, at = j * line + first * pixel + channel;
        for (let k = 0; k < weights.length; k++, at += pixel) sum += weights[k] * source[at];
        out[j * outStep.line + i * outStep.pixel + channel] = toByte(sum);
      }
    }
  });
  return out;
}

export function resized(rgb, w, h, toW, toH) {
  const narrow = resample(rgb, h, w, toW, { pixel: 3, line: 3 * w }, new Uint8Array(3 * toW * h),
    { pixel: 3, line: 3 * toW });
  return resample(narrow, toW, h, toH, { pixel: 3 * toW, line: 3 }, new Uint8Array(3 * toW * toH),
    { pixel: 3 * toW, line: 3 });
}

// Round half to even, as Python does.
const roundEven = (x) => (Math.abs(x % 1) === 0.5 ? 2 * Math.round(x / 2) : Math.round(x));

export function middle(rgb, w, h, resize = 256, crop = 224) {
  const short = Math.min(w, h), [toW, toH] = [w, h].map((side) => Math.trunc((resize * side) / short));
  const small = resized(rgb, w, h, toW, toH), out = new Uint8Array(3 * crop * crop);
  const [left, top] = [toW, toH].map((side) => roundEven((side - crop) / 2));
  for (let y = 0; y < crop; y++) {
    const start = 3 * ((top + y) * toW + left);
    out.set(small.subarray(start, start + 3 * crop), 3 * y * crop);
  }
  return out;
}

// (h, w, 3) bytes to (3, h, w) numbers from -1 to 1.
export function asTensor(rgb) {
  const n = rgb.length / 3, out = new Float32Array(rgb.length);
  for (let i = 0; i < n; i++) for (let c = 0; c < 3; c++) out[c * n + i] = (rgb[3 * i + c] / 255 - 0.5) / 0.5;
  return out;
}
