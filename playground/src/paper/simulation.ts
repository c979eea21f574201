/**
 * The paper's example: x' = x + Δ(u + φ(x) a*) + w, with the policy u = −θx − φ(x) â.
 *
 * The controller is the exported WebAssembly module. Only nature is computed here.
 */
import type { Controller } from "../controllers/paper_mgaps/paper_mgaps.mjs";
import { Random } from "../random";

export const DELTA = 0.01;
export const LARGEST_PARAMETER = 0.25;
export const ROWS = 1000;

/** What the reader chooses. */
export interface Settings {
  /** The gain at the start, and the gain of the controller that does not learn. */
  gain: number;
  /** The size of the noise's increments, σ. */
  noise: number;
  /** The number of steps between two changes of a*. */
  period: number;
  steps: number;
  seed: number;
}

/** The true parameters of each period, and the disturbance of each step. */
export interface Nature {
  parameters: ArrayLike<number>[];
  disturbances: Float64Array;
  period: number;
}

/** A run, in rows that each cover the same number of steps. */
export interface Trace {
  /** The number of the first step of each row. */
  step: Float64Array;
  gain: Float64Array;
  /** The mean cost of a step. */
  cost: Float64Array;
  /** The cost of all steps up to the end of the row. */
  cumulative: Float64Array;
  /** The mean of |x|. */
  error: Float64Array;
  /** The mean of |φ(x)(â − a*)|. */
  mismatch: Float64Array;
  total: number;
  /** ρ̂ at the end: below 1, the closed loop forgets. */
  contraction: number;
}

export function drawNature(settings: Settings): Nature {
  const random = new Random(settings.seed);
  const parameters: number[][] = [];
  for (let begin = 0; begin < settings.steps; begin += settings.period) {
    parameters.push([0, 1, 2].map(() => LARGEST_PARAMETER * (2 * random.uniform() - 1)));
  }
  const disturbances = new Float64Array(settings.steps);
  let w = 0;
  for (let t = 0; t < settings.steps; t++) {
    disturbances[t] = w; // Ornstein–Uhlenbeck noise, which starts at 0
    w = 0.95 * w + settings.noise * random.normal();
  }
  return { parameters, disturbances, period: settings.period };
}

/** Run the controller. With `learns` false, only its estimator learns. */
export function simulate(controller: Controller, nature: Nature, gain: number, learns: boolean): Trace {
  const steps = nature.disturbances.length;
  const width = Math.max(1, Math.floor(steps / ROWS));
  const rows = Math.floor(steps / width);
  const trace: Trace = {
    step: new Float64Array(rows),
    gain: new Float64Array(rows),
    cost: new Float64Array(rows),
    cumulative: new Float64Array(rows),
    error: new Float64Array(rows),
    mismatch: new Float64Array(rows),
    total: 0,
    contraction: 0,
  };
  controller.init({ theta: [gain] });
  if (!learns) controller.freeze();
  const measured = [0];
  const observed = [0];
  const theta = controller.state.theta;
  let x = 0;
  for (let row = 0; row < rows; row++) {
    trace.step[row] = row * width;
    trace.gain[row] = theta[0]!;
    let cost = 0;
    let error = 0;
    let mismatch = 0;
    for (let t = row * width; t < (row + 1) * width; t++) {
      const a = nature.parameters[Math.floor(t / nature.period)]!;
      const residual = a[0]! + a[1]! * Math.sin(x) + a[2]! * Math.sin(2 * x);
      measured[0] = x;
      const u = controller.act(measured, t)[0]!;
      cost += controller.info.cost;
      error += Math.abs(x);
      mismatch += Math.abs(controller.info.f_hat[0]! - residual);
      observed[0] = residual;
      controller.observe(observed);
      x += DELTA * (u + residual) + nature.disturbances[t]!;
    }
    trace.total += cost;
    trace.cost[row] = cost / width;
    trace.cumulative[row] = trace.total;
    trace.error[row] = error / width;
    trace.mismatch[row] = mismatch / width;
  }
  trace.contraction = controller.info.tuner_contraction;
  return trace;
}

/** The best gain in hindsight: golden-section search on the logarithm, since the cost has one minimum in the gain. */
export function bestStaticGain(controller: Controller, nature: Nature, evaluations = 14): { gain: number; trace: Trace } {
  const ratio = (Math.sqrt(5) - 1) / 2;
  const run = (logarithm: number) => {
    const gain = Math.exp(logarithm);
    return { logarithm, gain, trace: simulate(controller, nature, gain, false) };
  };
  let low = Math.log(0.1);
  let high = Math.log(50);
  let left = run(high - ratio * (high - low));
  let right = run(low + ratio * (high - low));
  for (let i = 2; i < evaluations; i++) {
    if (left.trace.total <= right.trace.total) {
      high = right.logarithm;
      right = left;
      left = run(high - ratio * (high - low));
    } else {
      low = left.logarithm;
      left = right;
      right = run(low + ratio * (high - low));
    }
  }
  return left.trace.total <= right.trace.total ? left : right;
}

/** Θ of the tuners. */
const LOWEST_GAIN = 0;
const HIGHEST_GAIN = 50;
/** Past that counts less than this share is left out. */
const FORGOTTEN = 1e-6;

/**
 * The gradient of the surrogate cost at a step: the derivative in θ of the cost that θ would have there, had it been used
 * from the beginning, with the exact model.
 */
export function surrogateGradient(nature: Nature, step: number, gain: number): number {
  const keep = 1 - DELTA * gain;
  const remembered = keep > 0 ? Math.ceil(Math.log(FORGOTTEN) / Math.log(keep)) : 1;
  let x = 0;
  let y = 0; // the derivative of x in θ
  for (let t = Math.max(0, step - remembered); t < step; t++) {
    y = keep * y - DELTA * x;
    x = keep * x + nature.disturbances[t]!;
  }
  const a = nature.parameters[Math.floor(step / nature.period)]!;
  const u = -gain * x - (a[0]! + a[1]! * Math.sin(x) + a[2]! * Math.sin(2 * x));
  const slope = -x - (gain + a[1]! * Math.cos(x) + 2 * a[2]! * Math.cos(2 * x)) * y;
  return 2 * x * y + 0.2 * u * slope;
}

/** The local regret Σ |∇F(θ)|², with the projected gradient, up to each row of a run; from every `every`-th step. */
export function localRegret(nature: Nature, trace: Trace, learningRate: number, every: number): Float64Array {
  const width = trace.step[1]! - trace.step[0]!;
  let sum = 0;
  return trace.gain.map((gain, row) => {
    const next = trace.gain[row + 1] ?? gain;
    for (let t = row * width; t < (row + 1) * width; t += every) {
      const theta = gain + ((t - row * width) / width) * (next - gain);
      const moved = theta - learningRate * surrogateGradient(nature, t, theta);
      const projected = (theta - Math.min(Math.max(moved, LOWEST_GAIN), HIGHEST_GAIN)) / learningRate;
      sum += Math.min(every, width) * projected ** 2;
    }
    return sum;
  });
}
