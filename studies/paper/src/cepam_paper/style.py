"""The page's style sheet: light and dark, narrow screens, and paper."""

from __future__ import annotations

SHEET = """
:root { color-scheme: light dark;
  --ink: #1c2024; --faint: #5c6670; --ground: #fcfcfa; --panel: #f2f2ee; --line: #d9dad5; --link: #1f5f99;
  --holds: #17693b; --repaired: #8a5a00; --fails: #a8281e; --untested: #5c6670;
  --open: #4a5a8a; --program: #7a3d8f; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e4e6e8; --faint: #9aa4ad; --ground: #15181b; --panel: #1e2226; --line: #343a40; --link: #86b9e8;
  --holds: #5cc98a; --repaired: #e0b25a; --fails: #f08a80; --untested: #9aa4ad;
  --open: #9fb2e8; --program: #cf9ae0; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; scroll-padding-top: 1rem; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 17px/1.55 "Iowan Old Style", "Palatino Linotype", Palatino, "Source Serif 4", Georgia, serif; }
.sheet { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1, h2, h3, nav, th, .label, .where, .tally, .redo, footer, figcaption, caption {
  font-family: "Inter", "Segoe UI", system-ui, -apple-system, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 2rem; line-height: 1.15; margin: 0 0 .6rem; letter-spacing: -.015em; }
h2 { font-size: 1.4rem; line-height: 1.25; margin: 3.2rem 0 .6rem; padding-top: .9rem;
  border-top: 2px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.9rem 0 .5rem; }
p { margin: .6rem 0; max-width: 46rem; } ul { max-width: 46rem; padding-left: 1.2rem; }
a { color: var(--link); text-decoration-thickness: 1px; text-underline-offset: .15em; }
code { font: .86em ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; background: var(--panel);
  padding: .1em .3em; border-radius: 3px; overflow-wrap: anywhere; }
nav { background: var(--panel); border-radius: 8px; padding: .9rem 1.2rem; margin: 1.5rem 0; font-size: .92rem; }
nav ol { margin: .3rem 0 0; padding-left: 1.4rem; columns: 2 18rem; column-gap: 2rem; } nav li { break-inside: avoid; }
.notice { border-left: 4px solid var(--repaired); background: var(--panel); padding: .6rem 1rem; max-width: 46rem; }
.tally { display: flex; flex-wrap: wrap; gap: .4rem 1.4rem; padding: 0; margin: 1rem 0; list-style: none;
  max-width: none; }
.tally b { font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; margin: .8rem 0 1.2rem; }
table { border-collapse: collapse; font-size: .9rem; line-height: 1.4; min-width: 24rem; }
caption { caption-side: bottom; text-align: left; color: var(--faint); font-size: .85rem; padding-top: .5rem; }
th { text-align: left; font-size: .8rem; font-weight: 600; color: var(--faint); }
th, td { padding: .38rem .8rem .38rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
thead th { border-bottom: 2px solid var(--line); }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th.number { text-align: right; }
.verdicts { width: 100%; min-width: 52rem; table-layout: fixed; } .verdicts td { overflow-wrap: anywhere; }
.verdicts col.l { width: 8.6rem; } .verdicts col.c { width: 30%; }
math { font-size: 1.02em; } .none { color: var(--faint); }
.verdicts .group th { padding-top: 1.3rem; color: var(--ink); font-size: .92rem; }
.where { color: var(--faint); font-size: .78rem; } .redo { display: block; margin-top: .3rem; font-size: .78rem; }
.label { display: inline-block; font-size: .76rem; font-weight: 650; border: 1.5px solid currentColor; border-radius:
  1em; padding: .08em .65em; text-decoration: none; }
.holds { color: var(--holds); } .repaired { color: var(--repaired); } .fails { color: var(--fails); }
.open { color: var(--open); } .program { color: var(--program); }
.untested { color: var(--untested); } .label.untested { border-style: dashed; }
figure { margin: 1.4rem 0; }
figure img { max-width: 100%; height: auto; display: block; background: #fff; border-radius: 6px; }
figcaption { color: var(--faint); font-size: .87rem; margin-top: .5rem; max-width: 46rem; }
.facts { color: var(--faint); font-size: .87rem; }
footer { margin-top: 3.5rem; border-top: 2px solid var(--line); font-size: .86rem; }
footer h2 { border: 0; margin-top: 1rem; font-size: 1.1rem; }
@media (max-width: 40rem) { body { font-size: 16px; } .sheet { padding: 1.5rem 1rem 3rem; } h1 { font-size: 1.6rem; }
  caption { max-width: calc(100vw - 3rem); } /* read without scrolling, however wide the table is */
  /* Each claim becomes a card, so that its evidence is read without scrolling sideways. */
  .verdicts, .verdicts tbody, .verdicts tr, .verdicts td, .verdicts th { display: block; width: auto; min-width: 0; }
  .verdicts colgroup, .verdicts thead { display: none; }
  .verdicts tr { border-bottom: 2px solid var(--line); padding: .7rem 0; }
  .verdicts td { border: 0; padding: .15rem 0; } .verdicts math { font-size: .78em; }
  .verdicts td[data-head]::before { content: attr(data-head) ": "; color: var(--faint); font-size: .8rem; }
}
@media print {
  :root { color-scheme: light; --ink: #000; --faint: #444; --ground: #fff; --panel: #f4f4f4; --line: #bbb; --link: #000;
    --holds: #0a5a2c; --repaired: #7a4d00; --fails: #96190f; --untested: #444;
    --open: #33406b; --program: #5d2c70; }
  @page { size: A4; margin: 16mm 14mm; }
  body { font-size: 10pt; } .sheet { max-width: none; padding: 0; } nav { break-after: page; }
  section.part { break-before: page; } section.part h2 { border: 0; margin-top: 0; }
  h2, h3 { break-after: avoid; } figure, tr, .notice { break-inside: avoid; } thead { display: table-header-group; }
  .wide { overflow: visible; } table, .verdicts { min-width: 0; font-size: 8.5pt; } td.number { white-space: normal; }
  figure img { max-height: 200mm; } a { text-decoration: none; }
}
"""
