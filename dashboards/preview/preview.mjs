// Draws the generated dashboards with Grafana's own components, in Chromium,
// with data from a running Prometheus, and writes one PNG for each.
//
//   npm install
//   npm run preview -- --prometheus http://127.0.0.1:9090 --range 10m --out /tmp/pictures
//
// Chromium must be installed; --chromium says where it is not /usr/bin/chromium.
import {createServer} from 'node:http';
import {mkdir, readdir, readFile} from 'node:fs/promises';
import {dirname, join} from 'node:path';
import {fileURLToPath} from 'node:url';
import {parseArgs} from 'node:util';
import esbuild from 'esbuild';
import {chromium} from 'playwright-core';
import sharp from 'sharp';

const here = dirname(fileURLToPath(import.meta.url));
const {values: flags} = parseArgs({
  options: {
    prometheus: {type: 'string', default: 'http://127.0.0.1:9090'},
    out: {type: 'string', default: join(here, '..', 'pictures')},
    chromium: {type: 'string', default: '/usr/bin/chromium'},
    range: {type: 'string', default: '6h'}, // how far back: 10m, 6h, 7d
    'scrape-interval': {type: 'string', default: '15s'},
    group: {type: 'string', default: ''}, // consumer group of "Why not?"
    width: {type: 'string', default: '1280'},
    height: {type: 'string', default: '0'}, // only so much of the page; 0 is all of it
    theme: {type: 'string', default: 'light'}, // or dark
    now: {type: 'string', default: ''}, // Unix time at the right edge
    only: {type: 'string', default: ''}, // uid of the one dashboard to draw
    prefix: {type: 'string', default: ''}, // of the pictures' names
  },
});

const seconds = (text) => {
  const m = /^(\d+)([smhd])$/.exec(text);
  if (!m) throw new Error(`--range and --scrape-interval take a number and s, m, h or d, not ${text}`);
  return Number(m[1]) * {s: 1, m: 60, h: 3600, d: 86400}[m[2]];
};

const bundle = await esbuild.build({
  entryPoints: [join(here, 'draw.jsx')],
  bundle: true, write: false, outdir: 'out', format: 'esm', jsx: 'automatic', logLevel: 'error',
  define: {'process.env.NODE_ENV': '"production"', global: 'window'},
  // Grafana's editors come along, though no panel uses them.
  loader: {'.ttf': 'empty', '.svg': 'dataurl', '.png': 'dataurl', '.woff': 'empty', '.woff2': 'dataurl'},
});

const built = (ending) => bundle.outputFiles.find((f) => f.path.endsWith(ending)).text;

// One origin for the page, the dashboards and Prometheus: no CORS.
const server = createServer(async (req, res) => {
  const url = new URL(req.url, 'http://localhost');
  try {
    if (url.pathname.startsWith('/api/')) {
      let body = '';
      for await (const chunk of req) body += chunk;
      const answer = await fetch(flags.prometheus + url.pathname, {method: 'POST', headers: {'content-type': 'application/x-www-form-urlencoded'}, body});
      res.writeHead(answer.status, {'content-type': 'application/json'}).end(await answer.text());
    } else if (url.pathname === '/draw.js') {
      res.writeHead(200, {'content-type': 'text/javascript'}).end(built('.js'));
    } else if (url.pathname === '/draw.css') {
      res.writeHead(200, {'content-type': 'text/css'}).end(built('.css'));
    } else if (url.pathname.endsWith('.json')) {
      res.writeHead(200, {'content-type': 'application/json'}).end(await readFile(join(here, '..', url.pathname)));
    } else if (url.pathname === '/') {
      res.writeHead(200, {'content-type': 'text/html'})
        .end('<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="/draw.css"><body style="margin:0"><div id="root"></div><script type="module" src="/draw.js"></script>');
    } else {
      res.writeHead(404).end();
    }
  } catch (err) {
    res.writeHead(502).end(String(err));
  }
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));

const browser = await chromium.launch({executablePath: flags.chromium, args: ['--no-sandbox', '--font-render-hinting=none']});
try {
  await mkdir(flags.out, {recursive: true});
  const page = await browser.newPage({viewport: {width: Number(flags.width), height: 900}});
  let failed = false;
  page.on('pageerror', (err) => { console.error(err.message); failed = true; });
  page.on('console', (m) => m.type() === 'error' && process.env.DEBUG && console.error(m.text()));
  for (const file of (await readdir(join(here, '..'))).filter((f) => f.endsWith('.json') && f.startsWith(flags.only))) {
    const query = new URLSearchParams({
      dashboard: '/' + file, range: seconds(flags.range), scrape: seconds(flags['scrape-interval']),
      group: file.includes('group') ? flags.group : '',
      theme: flags.theme, now: flags.now || Math.floor(Date.now() / 1000),
    });
    await page.goto(`http://127.0.0.1:${server.address().port}/?${query}`);
    await page.waitForFunction(() => window.drawn, null, {timeout: 120_000});
    const empty = await page.evaluate(() => window.drawn.empty);
    const out = join(flags.out, flags.prefix + file.replace('.json', '.png'));
    // A palette is enough for lines and text, and a quarter of the size.
    await sharp(await page.screenshot(Number(flags.height) ? {clip: {x: 0, y: 0, width: Number(flags.width), height: Number(flags.height)}} : {fullPage: true})).png({palette: true, colours: 128, effort: 10}).toFile(out);
    console.log(out, empty.length ? `without data: ${empty.join('; ')}` : '');
  }
  process.exitCode = failed ? 1 : 0;
} finally {
  await browser.close();
  server.close();
}
