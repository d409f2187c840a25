// What made a picture, in its PNG: A1111's text, our record, and the mark of AI, as olivelike/runtime/pictures/picture_record.py writes them.

const RECORD = "olivelike/picture/1";
// Bytes of a PNG's signature and its first chunk, IHDR: https://www.w3.org/TR/png-3.
const HEAD = 8 + 25;

const quoted = (text) => (/[,:\n\r]/.test(text) || text.startsWith('"') || text !== text.trim() ? JSON.stringify(text) : text);

/** Return A1111's text of a recipe. */
function parameters({ prompt, negative_prompt: negative, steps, sampler, schedule, guidance_scale: scale, seed, width, height, model, version }) {
  const settings = {
    Steps: steps, Sampler: sampler, "Schedule type": sampler && (schedule ?? "Uniform"), "CFG scale": scale, Seed: seed, Size: `${width}x${height}`,
    Model: model, RNG: "CPU", Version: version,
  };
  const told = Object.entries(settings).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return [prompt, ...(negative ? [`Negative prompt: ${negative}`] : []), told.map(([name, value]) => `${name}: ${quoted(String(value))}`).join(", ")].join("\n").replaceAll("\0", " ");
}

/** Return the record of a recipe; its seed is text, since numbers of JavaScript have 53 bits. */
function record({ seed, negative_prompt: negative, ...rest }) {
  const names = ["prompt", "steps", "scheduler", "sampler", "schedule", "guidance_scale", "width", "height", "model", "version"];
  const values = { format: RECORD, ...Object.fromEntries(names.map((name) => [name, rest[name] ?? null])), negative_prompt: negative || null };
  return `${JSON.stringify(values).slice(0, -1)},"seed":${seed}}`;
}

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? 0xedb88320 ^ (value >>> 1) : value >>> 1;
  return value;
});

function checksum(bytes) {
  let value = 0xffffffff;
  for (const byte of bytes) value = TABLE[(value ^ byte) & 0xff] ^ (value >>> 8);
  return ~value >>> 0;
}

/** Return a chunk of text: of Latin letters as every program reads it, else in UTF-8. */
function chunk(keyword, text) {
  const isLatin = [...text].every((letter) => letter.codePointAt(0) < 256);
  const latin = (letters) => Uint8Array.from(letters, (letter) => letter.codePointAt(0));
  const data = isLatin ? latin(`tEXt${keyword}\0${text}`) : [...latin(`iTXt${keyword}\0\0\0\0\0`), ...new TextEncoder().encode(text)];
  const made = new Uint8Array(data.length + 8);
  made.set(data, 4);
  const view = new DataView(made.buffer);
  view.setUint32(0, data.length - 4);
  view.setUint32(data.length + 4, checksum(made.subarray(4, -4)));
  return made;
}

/** Return the parts of a PNG file with what made it; `xmp` is the mark of AI. */
export function withRecipe(png, recipe) {
  const texts = { parameters: parameters(recipe), olivelike: record(recipe), "XML:com.adobe.xmp": recipe.xmp };
  return [png.subarray(0, HEAD), ...Object.entries(texts).map((one) => chunk(...one)), png.subarray(HEAD)];
}
