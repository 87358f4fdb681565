// The methods of u2c on one row: from its logits, its score u and the p-value of u to c+1 probabilities, the last for
// "I don't know". The notebooks 04_reject, 05_unified, 06_regions, 01_rank and 08_left_out derive what is computed here, and
// tests/test_live.py compares every function with the library.

export function logSumExp(x) {
  const top = x.reduce((a, b) => Math.max(a, b), -Infinity);
  return top + Math.log(x.reduce((sum, v) => sum + Math.exp(v - top), 0));
}

export function softmax(x) {
  const all = logSumExp(x);
  return x.map((v) => Math.exp(v - all));
}

export function argmax(x) {
  return x.reduce((best, v, i) => (v > x[best] ? i : best), 0);
}

// RC's threshold: the alpha quantile of sorted scores, interpolated as numpy does.
export function threshold(sorted, alpha) {
  const at = alpha * (sorted.length - 1), low = Math.floor(at);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

// Where as many rows abstain as lie at or above the quantile. `turns` holds, for each validation row, where it begins to
// abstain, ascending: the intercept of LeftOutU2C's odds, or the logarithm of RankU2C's level.
export function turningPoint(turns, alpha) {
  const n = turns.length, abstain = n - Math.ceil((n - 1) * alpha - 1e-9);
  const last = turns[abstain - 1], above = turns.find((turn) => turn > last);
  return above === undefined ? last + 1 : (last + above) / 2;
}

export const level = (turns, alpha) => Math.exp(turningPoint(turns, alpha));

// U2C's tau_u: a network of one number with a hidden layer of rectified units.
export function link({ w, b, v, bias }, u) {
  return w.reduce((sum, slope, i) => sum + v[i] * Math.max(0, slope * u + b[i]), bias);
}

export function rejectOrClassify(f, u, theta) {
  return u >= theta ? [...f.map(() => 0), 1] : [...softmax(f), 0];
}

export function unified(f, tauU) {
  return softmax([...f, tauU]);
}

export function byRanks(f, p, level, power = 2) {
  const abstain = 1 / (1 + (p / level) ** power);
  return [...softmax(f).map((q) => q * (1 - abstain)), abstain];
}

export function byOdds(f, odds) {
  const all = logSumExp(f);
  return softmax([...f.map((v) => v - all), odds]);
}

// The kind of knowledge, as `U2CClassifier.explain` names it.
export function kind(probs, clear = 0.75) {
  const c = probs.length - 1, best = argmax(probs);
  if (best === c) return "unknown-known";
  const known = probs.slice(0, c).reduce((a, b) => a + b, 0);
  return probs[best] >= clear * known ? "known-known" : "known-unknown";
}
