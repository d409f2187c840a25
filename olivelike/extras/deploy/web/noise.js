// Noise: the numbers that `torch.randn` draws on the CPU, so that a seed gives the picture that it gives there.
// The algorithm is told in olivelike/runtime/pipeline/noise.py; angles are rounded to float32 as there.

const LENGTH = 624;
const SHIFT = 397;
const BLOCK = 16;
const TURN = Math.fround(2 * Math.PI);

/** Return a function that draws whole numbers below 2 ** 32; of a seed the lower 32 bits count, as in torch. */
function mersenneTwister(seed) {
  const state = new Uint32Array(LENGTH);
  state[0] = Number(BigInt(seed) & 0xffffffffn);
  for (let i = 1; i < LENGTH; i++) {
    const last = state[i - 1];
    state[i] = Math.imul(1812433253, last ^ (last >>> 30)) + i;
  }
  let next = LENGTH;
  const renew = () => {
    for (let i = 0; i < LENGTH; i++) {
      const pair = (state[i] & 0x80000000) | (state[(i + 1) % LENGTH] & 0x7fffffff);
      state[i] = state[(i + SHIFT) % LENGTH] ^ (pair >>> 1) ^ (pair & 1 ? 0x9908b0df : 0);
    }
    next = 0;
  };
  return () => {
    if (next === LENGTH) renew();
    let drawn = state[next++];
    drawn ^= drawn >>> 11;
    drawn ^= (drawn << 7) & 0x9d2c5680;
    drawn ^= (drawn << 15) & 0xefc60000;
    return (drawn ^ (drawn >>> 18)) >>> 0;
  };
}

/**
 * Return what draws standard normal numbers of a seed, one call after the other: `draw(count)` gives 16 or more as a
 * Float32Array. The seed is a whole number, or its text.
 */
export function makeNoise(seed) {
  const word = mersenneTwister(seed);
  return (count) => {
    if (count < BLOCK) throw new RangeError(`noise of ${count} numbers is drawn otherwise; ask for ${BLOCK} or more`);
    const values = new Float32Array(count);
    const fill = (from) => {
      for (let i = from; i < count; i++) values[i] = (word() & 0xffffff) / 0x1000000;
    };
    const transform = (from) => {
      for (let i = from; i < from + BLOCK / 2; i++) {
        const radius = Math.sqrt(-2 * Math.log(1 - values[i]));
        const angle = Math.fround(TURN * values[i + BLOCK / 2]);
        values[i] = radius * Math.cos(angle);
        values[i + BLOCK / 2] = radius * Math.sin(angle);
      }
    };
    fill(0);
    for (let i = 0; i + BLOCK <= count; i += BLOCK) transform(i);
    if (count % BLOCK) {
      fill(count - BLOCK);
      transform(count - BLOCK);
    }
    return values;
  };
}
