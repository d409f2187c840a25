"""How a report looks: system fonts, light and dark, narrow screens, paper."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --ink: #1b1f24; --quiet: #57606a; --line: #d0d7de; --panel: #f6f8fa; --link: #0a5dc2;
  --hit: #d3f2d3; --executed: #ffe2b8; --failed: #ffd0d0; --skipped: #e4e7eb; --mark: #c2410c; --bar: #c77d0a;
  --shade: #0000002e; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14181d; --ink: #e6eaee; --quiet: #a3adb8; --line: #39424c; --panel: #1d232a; --link: #7ab7ff;
  --hit: #1f4d2b; --executed: #5c3c0e; --failed: #6b2020; --skipped: #363d46; --mark: #ffa36b; --bar: #d9962f;
  --shade: #000000b0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.25rem clamp(0.9rem, 4vw, 2.5rem) 3rem; max-width: 78rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0.2rem 0 0.4rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 0.7rem; padding-bottom: 0.3rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 0.9rem 0 0.4rem; }
small { font-size: 0.85em; color: var(--quiet); }
code { font: 0.92em ui-monospace, "Cascadia Mono", Menlo, Consolas, monospace; color: var(--ink); }
.lead { font-size: 1.05rem; margin: 0 0 1rem; }
.hint { margin: 0 0 1rem; color: var(--quiet); }
nav { display: flex; flex-wrap: wrap; gap: 0.3rem 1.1rem; margin: 1.1rem 0 0; }
nav a { padding: 0.25rem 0; }
a { color: var(--link); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); gap: 0.5rem 1.6rem;
  margin: 0.6rem 0; }
dt { color: var(--quiet); font-size: 0.82rem; }
dd { margin: 0; }
.tiles { grid-template-columns: repeat(4, 1fr); gap: 0.8rem; margin: 1.2rem 0 1.4rem; }
.tiles > div { background: var(--panel); border: 1px solid var(--line); border-radius: 0.6rem; padding: 0.7rem 1rem; }
.tiles strong { display: block; font-size: 1.45rem; line-height: 1.35; font-weight: 650;
  font-variant-numeric: tabular-nums; }
.tiles small { display: block; }
.whole { white-space: nowrap; }
.badge { display: inline-block; vertical-align: 0.18em; padding: 0.05rem 0.6rem; border-radius: 1rem;
  font-size: 0.85rem; font-weight: 600; background: var(--skipped); }
.badge.ok { background: var(--hit); }
.badge.failed, .badge.interrupted { background: var(--failed); }
.key { display: inline-block; padding: 0 0.5rem; border-radius: 0.3rem; background: var(--skipped); color: var(--ink); }
.key.hit { background: var(--hit); }
.key.executed { background: var(--executed); }
.key.failed { background: var(--failed); }
.scroll { overflow-x: auto; margin: 0.8rem 0; background:
  linear-gradient(to right, var(--paper) 35%, transparent) left / 2.5rem 100% no-repeat local,
  linear-gradient(to left, var(--paper) 35%, transparent) right / 2.5rem 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) left / 0.8rem 100% no-repeat scroll,
  linear-gradient(to left, var(--shade), transparent) right / 0.8rem 100% no-repeat scroll; }
.scroll:focus-visible, summary:focus-visible, a:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: 0.92rem; overflow-wrap: normal; }
caption { text-align: left; color: var(--quiet); padding: 0.2rem 0 0.4rem; }
th, td { text-align: left; vertical-align: top; padding: 0.32rem 0.9rem 0.32rem 0;
  border-bottom: 1px solid var(--line); }
thead th { color: var(--quiet); font-weight: 600; white-space: nowrap; }
tbody th { font-weight: 500; overflow-wrap: anywhere; min-width: 10.5rem; }
tbody th, td { max-width: 34rem; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.number + :not(.number) { padding-left: 0.9rem; }
tr > :last-child { padding-right: 0; }
summary + .scroll caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
figure { margin: 0.8rem 0; }
figcaption { color: var(--quiet); font-size: 0.88rem; display: flex; flex-wrap: wrap; gap: 0.3rem 0.5rem;
  margin-top: 0.5rem; }
.component { display: grid; grid-template-columns: minmax(7.5rem, max-content) 1fr; gap: 0.2rem 1rem;
  padding: 0.55rem 0; border-bottom: 1px solid var(--line); align-items: start; }
.component h3 { margin: 0; padding-top: 0.5rem; min-width: 9rem; }
.chain { list-style: none; display: flex; flex-wrap: wrap; align-items: flex-start; gap: 0.45rem 1.5rem; margin: 0;
  padding: 0 1.3rem 0 0; }
.chain .chain { margin-bottom: 0.45rem; padding: 0 0 0 0.9rem; border-left: 2px solid var(--line); }
.chain .chain:last-child { margin-bottom: 0; }
.step { position: relative; display: flex; flex-direction: column; padding: 0.2rem 0.7rem; border-radius: 0.4rem;
  background: var(--skipped); line-height: 1.35; }
.step.hit { background: var(--hit); }
.step.executed { background: var(--executed); }
.step.failed { background: var(--failed); outline: 2px solid var(--mark); }
.step .name { font-weight: 600; }
.step .took { font-size: 0.85rem; font-variant-numeric: tabular-nums; }
.step:not(:last-child)::after { content: "\\2192"; position: absolute; right: -1.27rem; top: 0.55rem;
  color: var(--quiet); }
.fork { flex: 1 1 14rem; }
.timeline .when { width: 45%; min-width: 10rem; }
.timeline .before { color: var(--quiet); padding-left: 0.6rem; }
.timeline tbody th { min-width: 11.5rem; }
.timeline .why { min-width: 11rem; }
.timeline small { display: inline-block; }
.axis { position: relative; display: block; height: 1.3rem; font-weight: 400; font-size: 0.85rem; }
.axis span { position: absolute; padding-left: 0.25rem; border-left: 1px solid var(--quiet); line-height: 1.2; }
.track { position: relative; display: block; height: 0.95rem; margin-top: 0.28rem; background: var(--panel);
  border-radius: 0.2rem; }
.bar { position: absolute; top: 0; bottom: 0; min-width: 2px; border-radius: 0.2rem; background: var(--bar); }
.bar.failed { background: var(--mark); }
.facts dl, [aria-labelledby="environment"] dl { grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); }
.facts dl { margin: 0; }
details { border: 1px solid var(--line); border-radius: 0.5rem; margin: 0.6rem 0; padding: 0 0.9rem; }
summary { cursor: pointer; padding: 0.55rem 0; font-weight: 500; }
article { margin: 0.8rem 0; }
.error { border-left: 4px solid var(--mark); padding: 0.2rem 0 0.2rem 1rem; }
pre { white-space: pre-wrap; background: var(--panel); border-radius: 0.4rem; padding: 0.8rem; margin: 0.4rem 0;
  font: 0.88rem/1.5 ui-monospace, "Cascadia Mono", Menlo, Consolas, monospace; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 12rem), 20rem)); gap: 1rem; }
.pictures figure { margin: 0; }
.pictures img { width: 100%; height: auto; display: block; border-radius: 0.4rem; background: var(--panel); }
footer { margin-top: 3rem; color: var(--quiet); font-size: 0.85rem; }
@media (max-width: 64rem) { .tiles { grid-template-columns: 1fr 1fr; } }
@media (max-width: 48rem) {
  h1 { font-size: 1.4rem; }
  dl { gap: 0.4rem 1rem; }
  .tiles { gap: 0.6rem; }
  .tiles > div { padding: 0.6rem 0.7rem; }
  .tiles strong { font-size: 1.15rem; }
  .component { grid-template-columns: 1fr; }
  .component h3 { padding: 0; }
  .timeline thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .timeline, .timeline table, .timeline caption, .timeline tbody { display: block; }
  .timeline tr { display: grid; grid-template-columns: 1fr auto auto; gap: 0 1rem; padding: 0.5rem 0;
    border-bottom: 1px solid var(--line); }
  .timeline tbody th, .timeline td { border: 0; padding: 0; min-width: 0; width: auto; }
  .timeline td.when { grid-area: 2 / 1 / 3 / -1; width: auto; min-width: 0; padding-bottom: 0.2rem; }
  .timeline td.before { grid-area: 3 / 2 / 4 / -1; padding: 0; font-size: 0.85rem; }
  .timeline td.before:not(:empty)::before { content: "last time "; }
  .timeline td.why { grid-area: 4 / 1 / 5 / -1; color: var(--quiet); }
}
@media print {
  :root { color-scheme: light;
    --paper: #ffffff; --ink: #000000; --quiet: #444444; --line: #bbbbbb; --panel: #ffffff; --link: #000000;
    --hit: #d3f2d3; --executed: #ffe2b8; --failed: #ffd0d0; --skipped: #e4e7eb; --mark: #c2410c; --bar: #888888; }
  body { max-width: none; padding: 0; font-size: 9.5pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  nav { display: none; }
  .scroll { overflow: visible; background: none; }
  table { font-size: 8.5pt; }
  h2, h3, caption, summary { break-after: avoid; }
  tr, article, figure, .tiles > div, .component { break-inside: avoid; }
  details::details-content { content-visibility: visible; display: block; }
  tbody th, td { max-width: none; min-width: 0; overflow-wrap: anywhere; }
}
"""
"""Colours of text on its backgrounds have a contrast of 4.5 and more, light and dark."""
