// The page's texts in the language that was kept, else in the first that the browser wishes for, else in English.

import { LANGUAGES } from "./words.en.js";

const kept = /(?:^|; )olivelike_language=(\w+)/.exec(document.cookie)?.[1];
const wished = [kept, ...navigator.languages.map((tag) => tag.toLowerCase().split("-")[0])];
const code = wished.find((one) => one && Object.hasOwn(LANGUAGES, one)) ?? "en";

export const { LANGUAGE, WORDS } = await import(`./words.${code}.js`);
export { LANGUAGES };
