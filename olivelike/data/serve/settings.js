// Settings: language, theme and defaults, which this browser keeps; models, folders and bounds, as the operator has them.

import { $, button, inMegabytes, inWords, make, on, option, recall, remember } from "./dom.js";
import { defaultsKept, forgetDefaults, keepDefaults } from "./form.js";
import { LANGUAGE, LANGUAGES, followsBrowser, setLanguage, t } from "./language.js";
import { modelFacts, readLoaded, readModels, titleOf, unloadModels } from "./models.js";
import { notice } from "./notices.js";
import { theme, setTheme } from "./theme.js";

const FOLDERS = {
  "--gallery": t`Pictures and jobs`, "--models": t`Models`, "--lora-dir": t`LoRAs`, "--styles": t`Styles`, "--wildcard-dir": t`Wildcards`,
  "--upscaler-dir": t`Upscalers`, "--workflows": t`Workflows`, "--checkpoints": t`Checkpoints`,
};

/** A row of a list: what, its values, and what of the command line decides it. */
function row(label, values, decided = "") {
  return make("div", {}, make("dt", {}, label), make("dd", {}, values, decided ? make("code", {}, ` ${decided}`) : null));
}

/** Take what the server says of itself. */
export function showServer({ version, folders, limits, allows, safety, providers }) {
  $("folders-list").replaceChildren(...Object.entries(folders).map(([decided, paths]) => row(FOLDERS[decided] ?? decided, paths.join("\n") || t`none given`, decided)));
  const yes = (one) => (one ? t`yes` : t`no`);
  $("allowed-list").replaceChildren(
    row(t`Pictures of a job`, limits.max_pictures, "--max-images"),
    row(t`Largest side`, t`${limits.max_side} pixels`, "--max-size"),
    row(t`Steps`, limits.max_steps, "--max-steps"),
    row(t`Jobs that wait`, limits.max_queue, "--max-queue"),
    row(t`Time for a job`, inWords(limits.time_limit), "--time-limit"),
    row(t`Size of a file`, inMegabytes(limits.max_upload_bytes), "--max-body"),
    row(t`Provider`, providers.join(", ") || t`as each model was made for`, "--provider"),
    row(t`Safety checker`, safety ? t`on` : t`off`, "--no-safety"),
    row(t`Recipes in files of pictures`, yes(allows.metadata), "--no-metadata"),
    row(t`Workflows and conversions`, yes(allows.runs), "--workflows"),
    row(t`Pickled LoRAs`, yes(allows.pickled), "--allow-pickle"),
    row(t`Code of plugins`, yes(allows.plugins), "--allow-plugins"),
    row(t`Unsupported fields of A1111’s API`, allows.lenient ? t`left out` : t`refused`, "--ignore-unsupported"),
  );
  $("settings-version").textContent = `olivelike ${version}`;
}

/** Show which models are loaded, as the server says it now. */
export async function showLoaded() {
  await readLoaded().catch(() => {});
  showModels();
}

function showModels() {
  const facts = modelFacts();
  $("models-list").replaceChildren(...facts.map(({ title, detail, sha256, current }) => {
    const item = row(title, detail);
    if (current) item.firstChild.append(make("span", { className: "badge" }, t`chosen`));
    if (sha256) item.lastChild.append(make("br"), make("code", { className: "hint" }, `SHA-256 ${sha256}`));
    return item;
  }));
  $("models-unload").disabled = !facts.some((one) => one.loaded);
}

/** Show what may have changed since the view was last open. */
export function showSettings() {
  $("theme-choice").value = theme();
  showModels();
  showLoaded();
  const kept = defaultsKept();
  $("defaults-list").replaceChildren(...(kept.length ? kept : [null]).map((one) => (one ? make("li", { className: "row" },
    make("span", { className: "grow" }, make("strong", {}, one.model ? titleOf(one.model) : t`All models`), " ", one.words),
    button(t`Forget`, () => {
      forgetDefaults(one.model);
      showSettings();
      $("defaults-keep").focus();
    }, { "aria-label": t`Forget the defaults of ${one.model ? titleOf(one.model) : t`All models`}` })) : make("li", { className: "hint" }, t`None kept: each model begins with its own.`))));
}

export function startSettings() {
  $("language").append(option("", t`As the browser`), ...Object.entries(LANGUAGES).map(([code, name]) => option(code, name, { lang: code })));
  $("language").value = followsBrowser() ? "" : LANGUAGE.split("-")[0];
  on("language", "change", () => setLanguage($("language").value));
  $("sound").checked = recall("olivelike.sound", false);
  on("sound", "change", () => remember("olivelike.sound", $("sound").checked));
  on("theme-choice", "change", () => setTheme($("theme-choice").value));
  on("defaults-keep", "click", () => {
    const count = keepDefaults();
    notice(count ? t`The form is the default now.` : t`The form is as the model has it; there is nothing to keep.`);
    showSettings();
  });
  const doing = (id, work) => on(id, "click", async () => {
    await work().catch((error) => notice(error.message));
    showSettings();
  });
  doing("models-refresh", () => readModels());
  doing("models-unload", async () => {
    await unloadModels();
    // Their process closes them between two pictures, and says so then.
    for (let tries = 0; tries < 6 && (tries === 0 || modelFacts().some((one) => one.loaded)); tries += 1) {
      await new Promise((done) => setTimeout(done, 250));
      await readLoaded();
    }
  });
}
