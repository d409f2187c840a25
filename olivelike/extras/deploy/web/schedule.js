// What happens between calls of the network: a table that scheduler/model.onnx gives, and one sum for each call.

import { FolderError } from "./folder.js";

const OUTPUTS = ["timesteps", "scale", "picture", "following", "draws", "initial", "clip", "threshold"];

/** Return the schedule of a sampler, the folder's own for "". `scheduler(inputs, outputs)` runs the model. */
export async function makeSchedule(scheduler, name, steps) {
  if (!Number.isSafeInteger(steps)) throw new FolderError("Steps are a whole number.");
  const inputs = {
    scheduler: ["string", [name], [1]],
    steps: ["int64", BigInt64Array.of(BigInt(steps)), [1]],
    strength: ["float64", Float64Array.of(1), [1]],
  };
  const found = await scheduler(inputs, () => OUTPUTS).catch((error) => {
    // The node that refuses is named for why; around it stand the names of the branches that it is in.
    const why = /Name:'(?:[^']*\/)?([^'/]+ [^'/]+)'[^']*$/.exec(error.cause?.message);
    throw why ? new FolderError(`${why[1][0].toUpperCase()}${why[1].slice(1)}.`) : error;
  });
  const [timesteps, scale, picture, following, draws, [initial], [clip], threshold] = OUTPUTS.map((output) => found[output].data);
  const [, values, terms] = found.following.dims;
  const row = (call, value) => following.subarray((call * values + value) * terms, (call * values + value + 1) * terms);
  return {
    timesteps,
    initial,
    draws: (call) => Boolean(draws[call]),
    scaled: (latents, call) => total([scale[call]], [latents]),
    /** Return what the picture's latents are foretold to be, and `state`: the latents and what is kept after a call. */
    advance([latents, ...kept], output, noise, call) {
      const foretold = limited(total(picture.subarray(2 * call, 2 * call + 2), [latents, output]), clip, threshold);
      const state = Array.from({ length: values }, (_, value) => total(row(call, value), [latents, foretold, output, noise, ...kept]));
      return { foretold, state };
    },
  };
}

/** Return the sum of terms times factors; `null` where nothing is in it. */
function total(factors, terms) {
  const used = terms.map((term, place) => [factors[place], term]).filter(([factor, term]) => factor && term);
  if (!used.length) return null;
  const sum = new Float64Array(used[0][1].length);
  for (const [factor, term] of used) for (let i = 0; i < sum.length; i++) sum[i] += factor * term[i];
  return sum;
}

// Large values are cut off; with a threshold, as section 2.3 of https://arxiv.org/abs/2205.11487 does.
function limited(values, clip, [share, most]) {
  const limit = share ? Math.min(Math.max(quantile(values.map(Math.abs).sort(), share), 1), most) : clip;
  return limit === Infinity ? values : values.map((value) => Math.min(limit, Math.max(-limit, value)) / (share ? limit : 1));
}

function quantile(sorted, share) {
  const place = (sorted.length - 1) * share;
  const [low, high] = [sorted[Math.floor(place)], sorted[Math.ceil(place)]];
  return low + (high - low) * (place % 1);
}
