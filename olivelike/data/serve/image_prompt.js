// Pictures as a prompt: which ones, and how strongly they lead, by the model's IP-Adapter.

import { $, make, newest } from "./dom.js";
import { upload } from "./initial.js";
import { announce, problem } from "./notices.js";

let pictures = [];
let taken = false;
const choosing = newest();

/** Show what a model has; without an IP-Adapter there is nothing to choose. */
export function takeIpAdapter(name) {
  taken = Boolean(name);
  $("fold-image-prompt").hidden = !taken;
}

/** What the order has of this. */
export function imagePromptFields() {
  if (!taken || pictures.length === 0) return {};
  return { ip_adapter_images: pictures.map(({ id }) => id) };
}

async function choose(files) {
  problem($("image-prompt-problem"), "");
  const isNewest = choosing();
  try {
    const found = [];
    for (const file of files) {
      found.push({ id: (await upload(file)).id, name: file.name, file });
    }
    if (!isNewest()) return;
    forgetImagePrompt();
    pictures = found.map(({ file, ...one }) => ({ ...one, url: URL.createObjectURL(file) }));
    announce(`${found.map(({ name }) => name).join(", ")}: a prompt too.`);
  } catch (error) {
    problem($("image-prompt-problem"), error);
  }
  show();
}

/** Let go of uploads that the server has no more. */
export function forgetImagePrompt() {
  for (const { url } of pictures) URL.revokeObjectURL(url);
  pictures = [];
  $("image-prompt-file").value = "";
  show();
}

function show() {
  $("image-prompt-pictures").replaceChildren(...pictures.map(({ url, name }) => make("img", { src: url, alt: name })));
  $("image-prompt-remove").disabled = pictures.length === 0;
  $("image-prompt-badge").textContent = pictures.length ? String(pictures.length) : "";
}

export function startImagePrompt() {
  $("image-prompt-file").addEventListener("change", () => {
    const files = [...$("image-prompt-file").files];
    if (files.length) choose(files);
  });
  $("image-prompt-remove").addEventListener("click", forgetImagePrompt);
}
