// The form and what it shows; everything heavy is in worker.js.

const $ = (id) => document.getElementById(id);

let worker = null;
let facts = null;
let painting = false;
let began = 0;
let saved = "picture";
let loaded = null;

const device = () => document.querySelector("input[name=device]:checked").value;
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

function say(text, share) {
  $("status").textContent = text;
  if (share !== undefined) $("progress").value = share;
}

function setPainting(now) {
  painting = now;
  $("paint").disabled = now || !facts;
  $("cancel").disabled = !now;
}

/** Say how much comes before the first picture on this device. */
function showDownload() {
  const isToCome = facts && loaded !== device();
  $("download").textContent = isToCome ? `The first picture loads ${megabytes(facts.download[device()])}.` : "";
}

function showProblem(text, offersWasm = false) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
  $("use-wasm").hidden = !offersWasm;
}

function requestOfForm() {
  const number = (id) => Number($(id).value);
  const numbers = Object.fromEntries(["steps", "scale", "width", "height"].map((id) => [id, number(id)]));
  // A seed stays text: numbers of JavaScript have 53 bits.
  const texts = Object.fromEntries(["prompt", "negative", "seed", "sampler"].map((id) => [id, $(id).value]));
  return { ...texts, ...numbers };
}

function paint() {
  if (painting || !facts || !$("form").reportValidity()) return;
  const request = requestOfForm();
  showProblem("");
  setPainting(true);
  began = performance.now();
  say("Beginning…", 0);
  saved = `${request.seed}`;
  $("command").textContent = command(request);
  const isAlike = !facts.samplers.other_noise.includes(request.sampler);
  $("command-note").textContent = isAlike ? "" : "It draws the noise of this sampler otherwise: its picture has other details.";
  $("picture").setAttribute("aria-label", `Picture of: ${request.prompt}`);
  worker.postMessage({ kind: "paint", device: device(), request });
}

/** Return what draws the same picture from the same folder. */
function command({ prompt, negative, seed, sampler, steps, scale, width, height }) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const other = sampler ? ` --scheduler ${quoted(sampler)}` : "";
  const against = negative ? ` --negative-prompt ${quoted(negative)}` : "";
  const numbers = `--seed ${seed} --steps ${steps} --guidance-scale ${scale} --size ${width}x${height}`;
  return `olivelike generate FOLDER ${quoted(prompt)}${against} ${numbers}${other}`;
}

const heard = {
  facts(found) {
    facts = found;
    for (const [id, side] of [["width", found.size[0]], ["height", found.size[1]]]) {
      Object.assign($(id), { min: found.unit, step: found.unit, value: side, readOnly: found.fixed });
    }
    const { names, own } = found.samplers;
    $("sampler").replaceChildren(...names.map((name) => new Option(name || `${own} (the model’s own)`, name)));
    const other = names.includes("") ? "" : ` ${own}, the model’s own sampler, is not known here; choose another one.`;
    showDownload();
    say(`Ready.${other}`);
    setPainting(false);
  },
  load({ name, bytes, total }) {
    say(`Loading ${name.replaceAll("_", " ")}: ${megabytes(bytes)} of ${megabytes(total)}`, bytes / total);
  },
  step({ number, total }) {
    if (number === 0) began = performance.now();
    const each = (performance.now() - began) / number / 1000;
    const left = number ? `, ${Math.ceil(each * (total - number))} s left` : "";
    say(`Step ${number + 1} of ${total}${left}`, number / total);
  },
  decode() {
    say("Decoding the picture…", 1);
  },
  picture({ pixels, width, height, seconds, flagged }) {
    const canvas = $("picture");
    Object.assign(canvas, { width, height });
    canvas.style.aspectRatio = `${width} / ${height}`;
    canvas.getContext("2d").putImageData(new ImageData(pixels, width, height), 0, 0);
    const checked = flagged ? " The safety checker flagged the picture, so it is black; try another seed." : "";
    say(`Painted in ${seconds.toFixed(1)} s.${checked}`, 1);
    $("save").disabled = false;
    loaded = device();
    showDownload();
    setPainting(false);
  },
  cancelled() {
    say("Cancelled.", 0);
    setPainting(false);
  },
  failed({ type, message }) {
    say("Stopped.", 0);
    const onGraphics = device() === "webgpu";
    if (type === "MemoryError") {
      startWorker(); // What the old one holds would be missed by the next attempt.
      const where = onGraphics ? "the graphics card" : "this browser";
      const remedy = onGraphics ? "Wasm may have it." : "Close other tabs, or take a smaller picture or pipeline.";
      showProblem(`There is too little memory in ${where}: ${message}. ${remedy}`, onGraphics);
    } else showProblem(message + (onGraphics ? " Wasm works without it." : ""), onGraphics && type === "DeviceError");
    setPainting(false);
  },
};

function startWorker() {
  worker?.terminate();
  worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  worker.onmessage = ({ data }) => heard[data.kind](data);
  worker.onerror = onLoadError;
}

function onLoadError(event) {
  event.preventDefault();
  heard.failed({ type: "Error", message: `The page’s own code can’t be loaded: ${event.message ?? "a file is missing"}. Export it again.` });
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  paint();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) paint();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && painting) $("cancel").click();
});
$("cancel").addEventListener("click", () => {
  say("Cancelling: this step ends first.");
  worker.postMessage({ kind: "cancel" });
});
$("draw-seed").addEventListener("click", () => {
  $("seed").value = crypto.getRandomValues(new Uint32Array(1))[0];
});
$("use-wasm").addEventListener("click", () => {
  document.querySelector("input[value=wasm]").checked = true;
  showDownload();
  paint();
});
$("save").addEventListener("click", () => {
  $("picture").toBlob((blob) => {
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: `${saved}.png` });
    link.click();
    URL.revokeObjectURL(link.href);
  });
});

for (const choice of document.querySelectorAll("input[name=device]")) choice.addEventListener("change", showDownload);

if (!navigator.gpu) {
  document.querySelector("input[value=webgpu]").disabled = true;
  $("device-note").textContent = "This browser has no WebGPU here, so wasm paints.";
}
setPainting(false);
startWorker();
worker.postMessage({ kind: "facts" });
