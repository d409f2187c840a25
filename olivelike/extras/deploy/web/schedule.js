// What happens between calls of the UNet: DDIM (https://arxiv.org/abs/2010.02502), PNDM without its Runge-Kutta steps
// (https://arxiv.org/abs/2202.09778) and Euler's method (https://arxiv.org/abs/2206.00364, algorithm 2 without churn), step
// by step as diffusers' schedulers.

const OWN = { DDIMScheduler: ddim, PNDMScheduler: pndm, EulerDiscreteScheduler: euler };
const UNKNOWN = ["thresholding", "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"];

/** Return the name of the scheduler that the page draws with: the folder's own, or DDIM where it does not know that. */
export function schedulerName({ config }) {
  const isKnown = config._class_name in OWN && !UNKNOWN.some((key) => config[key]);
  return isKnown && isUsual(config) ? config._class_name : "DDIMScheduler";
}

function isUsual(config) {
  if (config._class_name === "DDIMScheduler") return true;
  if (config._class_name === "PNDMScheduler") return config.skip_prk_steps === true;
  const plain = { interpolation_type: "linear", timestep_type: "discrete", final_sigmas_type: "zero" };
  return Object.entries(plain).every(([key, value]) => (config[key] ?? value) === value);
}

/** Return `{timesteps, noiseFactor, scale(latents, step), step(prediction, latents, step)}` for so many steps. */
export function makeSchedule(schedule, steps) {
  const config = { ...schedule.config };
  const name = schedulerName(schedule);
  if (name !== config._class_name) {
    // How the network was trained stays, the rest is that of DDIM.
    Object.assign(config, { timestep_spacing: "leading", clip_sample: config.clip_sample ?? false, thresholding: false });
  }
  const count = schedule.alphas_cumprod.length;
  if (!(Number.isInteger(steps) && steps >= 1 && steps <= count)) throw new Error(`Steps are a whole number from 1 to ${count}.`);
  return OWN[name]({ ...schedule, config, count }, steps);
}

function spaced({ config, count }, steps) {
  const offset = config.steps_offset ?? 0;
  const spacing = config.timestep_spacing ?? "leading";
  const range = [...Array(steps).keys()];
  if (spacing === "trailing") return range.map((i) => round(count - i * (count / steps)) - 1);
  if (spacing === "linspace") return range.map((i) => (steps > 1 ? ((steps - 1 - i) * (count - 1)) / (steps - 1) : null));
  return range.map((i) => (steps - 1 - i) * Math.floor(count / steps) + offset);
}

/** Round half to even, as NumPy. */
function round(value) {
  const below = Math.floor(value);
  if (value - below !== 0.5) return Math.round(value);
  return below % 2 ? below + 1 : below;
}

function ddim({ config, count, alphas_cumprod: alphas, final_alpha_cumprod: final }, steps) {
  const timesteps = spaced({ config, count }, steps).map((moment) => (moment === null ? 0 : round(moment)));
  return {
    timesteps,
    noiseFactor: 1,
    scale: (latents) => latents,
    step(prediction, latents, number) {
      const moment = timesteps[number];
      const before = moment - Math.floor(count / steps);
      const alpha = alphas[moment];
      const next = before >= 0 ? alphas[before] : final;
      const done = new Float32Array(latents.length);
      for (let i = 0; i < done.length; i++) {
        let [clean, rest] = parts(config, prediction[i], latents[i], Math.sqrt(alpha), Math.sqrt(1 - alpha));
        if (config.clip_sample) {
          const most = config.clip_sample_range ?? 1;
          clean = Math.min(most, Math.max(-most, clean));
        }
        done[i] = Math.sqrt(next) * clean + Math.sqrt(1 - next) * rest;
      }
      return done;
    },
  };
}

/** Return what the prediction takes the finished value and its noise to be. */
function parts(config, predicted, value, signal, noise) {
  switch (config.prediction_type ?? "epsilon") {
    case "epsilon":
      return [(value - noise * predicted) / signal, predicted];
    case "v_prediction":
      return [signal * value - noise * predicted, signal * predicted + noise * value];
    default:
      return [predicted, (value - signal * predicted) / noise];
  }
}

// How PNDM combines up to four predictions, the latest first.
const COMBINED = [[1], [3 / 2, -1 / 2], [23 / 12, -16 / 12, 5 / 12], [55 / 24, -59 / 24, 37 / 24, -9 / 24]];

function pndm({ config, count, alphas_cumprod: alphas, final_alpha_cumprod: final }, steps) {
  const stride = Math.floor(count / steps);
  const once = spaced({ config, count }, steps).map((moment) => (moment === null ? 0 : round(moment)));
  // The second step looks again at where the first one led.
  const timesteps = once.flatMap((moment, number) => (number === 1 ? [moment, moment] : [moment]));
  let latest = [];
  let begun = null;
  return {
    timesteps,
    noiseFactor: 1,
    scale: (latents) => latents,
    step(prediction, latents, number) {
      let [moment, before] = [timesteps[number], timesteps[number] - stride];
      let [from, weights, all] = [latents, null, null];
      if (number === 1) {
        [moment, before, from] = [moment + stride, moment, begun];
        [weights, all] = [[1 / 2, 1 / 2], [prediction, latest[0]]];
      } else {
        if (number === 0) begun = latents;
        latest = [prediction.slice(), ...latest.slice(0, 3)];
        [weights, all] = [COMBINED[latest.length - 1], latest];
      }
      const [alpha, next] = [alphas[moment], before >= 0 ? alphas[before] : final];
      const whole = alpha * Math.sqrt(1 - next) + Math.sqrt(alpha * (1 - alpha) * next);
      return from.map((value, i) => {
        let noise = all.reduce((sum, one, place) => sum + weights[place] * one[i], 0);
        if (config.prediction_type === "v_prediction") noise = Math.sqrt(alpha) * noise + Math.sqrt(1 - alpha) * value;
        return Math.sqrt(next / alpha) * value - ((next - alpha) * noise) / whole;
      });
    },
  };
}

function euler({ config, count, alphas_cumprod: alphas }, steps) {
  const spacing = config.timestep_spacing ?? "linspace";
  const timesteps = spaced({ config: { ...config, timestep_spacing: spacing }, count }, steps);
  if (steps === 1 && spacing === "linspace") timesteps[0] = 0;
  // Without any signal at the last moment the noise would be infinite; diffusers keeps this much.
  const noises = alphas.map((alpha) => Math.max(alpha, 2 ** -24)).map((alpha) => Math.sqrt((1 - alpha) / alpha));
  const sigmas = timesteps.map((moment) => {
    const [low, high] = [Math.floor(moment), Math.min(Math.ceil(moment), count - 1)];
    return noises[low] + (noises[high] - noises[low]) * (moment - low);
  });
  sigmas.push(0);
  const largest = Math.max(...sigmas);
  return {
    timesteps,
    noiseFactor: spacing === "leading" ? Math.sqrt(largest ** 2 + 1) : largest,
    scale: (latents, number) => latents.map((value) => value / Math.sqrt(sigmas[number] ** 2 + 1)),
    step(prediction, latents, number) {
      const sigma = sigmas[number];
      const whole = Math.sqrt(sigma ** 2 + 1);
      return latents.map((value, i) => {
        // `value` is the signal with sigma times as much noise; scaled, it is what the network saw.
        const [clean] = parts(config, prediction[i], value / whole, 1 / whole, sigma / whole);
        return value + ((value - clean) / sigma) * (sigmas[number + 1] - sigma);
      });
    },
  };
}
