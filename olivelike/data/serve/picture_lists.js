// Pictures that an order may have several of beside its words: a prompt for the IP-Adapter, references to work after.

import { $, button, make, on, onFiles, recall, remember } from "./dom.js";
import { upload } from "./initial.js";
import { t } from "./language.js";
import { announce, problem } from "./notices.js";
import { query } from "./server.js";

/** A list in the fold `fold-NAME`: `field` is the order's, `told` what they are, in words. */
function pictureList(name, field, told) {
  let pictures = [];
  let most = 0;
  const key = `olivelike.${name}`;

  function show() {
    $(`${name}-pictures`).replaceChildren(...pictures.map((one, place) => make(
      "li", {}, make("img", { src: one.url, alt: `${place + 1}: ${one.name}`, on: { error: () => remove(one) } }),
      make("span", { className: "of-picture", "aria-hidden": "true" }, String(place + 1)),
      button("×", () => {
        remove(one);
        $(`${name}-file`).focus();
      }, { className: "icon quiet", "aria-label": t`Remove ${one.name}` }),
    )));
    $(`${name}-remove`).disabled = pictures.length === 0;
    $(`${name}-badge`).textContent = pictures.length ? String(pictures.length) : "";
    remember(key, pictures.map(({ id, name: called }) => ({ id, name: called })));
  }

  function remove(one) {
    URL.revokeObjectURL(one.url);
    pictures = pictures.filter((other) => other !== one);
    show();
  }

  /** Those of before a reload; one that the server has no more can't be shown, and is left out. */
  function restore() {
    try {
      pictures = recall(key, []).map((one) => ({ ...one, url: query(`/api/uploads/${one.id}/preprocessed`, { preprocessor: "none" }) }));
      show();
    } catch {
      localStorage.removeItem(key);
    }
  }

  async function add(files) {
    problem($(`${name}-problem`), "");
    $(`fold-${name}`).open = true;
    try {
      for (const file of files) {
        if (pictures.length >= most) throw new Error(t`At most ${most} pictures are taken; ${file.name} and what follows is left out.`);
        const { id } = await upload(file);
        pictures.push({ id, name: file.name, url: URL.createObjectURL(file) });
        announce(`${file.name}: ${told}.`);
        show();
      }
    } catch (error) {
      problem($(`${name}-problem`), error);
    }
  }

  return {
    /** Let a model have so many; where it takes none, there is nothing to choose. */
    allow(count) {
      // What only some models take is open with those.
      if (count && !most && !$(`${name}-none`)) $(`fold-${name}`).open = true;
      most = count;
      const none = $(`${name}-none`);
      $(`fold-${name}`).hidden = !most && !none;
      if (none) none.hidden = most > 0;
      for (const part of $(`fold-${name}`).querySelectorAll(".drop, .row, .grid")) part.hidden = !most;
    },
    add,
    allowed: () => most > 0,
    /** What the order has of this. */
    fields: () => (most && pictures.length ? { [field]: pictures.slice(0, most).map(({ id }) => id) } : {}),
    /** Let go of uploads that the server has no more. */
    forget() {
      for (const { url } of pictures) URL.revokeObjectURL(url);
      pictures = [];
      show();
    },
    start() {
      onFiles(`${name}-file`, add);
      on(`${name}-remove`, "click", this.forget);
      restore();
    },
  };
}

export const imagePrompts = pictureList("image-prompt", "ip_adapter_images", t`a prompt too`);
export const references = pictureList("references", "references", t`a picture to work after`);
export const PICTURE_LISTS = [imagePrompts, references];
