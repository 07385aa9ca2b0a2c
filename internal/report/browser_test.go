package report

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"cotenant/internal/testenv"
)

// browser is one tab of a real browser, and what it complained about or asked the network for.
type browser struct {
	ctx context.Context

	mu       sync.Mutex
	problems []string
	requests []string
	url      string
}

func newBrowser(t *testing.T) *browser {
	path := testenv.Need(t, "chromium", "apt-get install chromium")
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(5*time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), opts...)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 10*time.Minute)
	t.Cleanup(cancel)
	b := &browser{}
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithListener(b.event))
	b.ctx = ctx
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits until it has gone: its folder is removed next
		cancel()
	})
	for _, domain := range []string{"Network", "Log", "Runtime"} {
		enable := cdp.Command[cdp.Empty, cdp.Empty]{Method: domain + ".enable"}
		if _, err := chromedp.Call(ctx, enable, cdp.Empty{}); err != nil {
			t.Fatalf("starting chromium: %v", err)
		}
	}
	return b
}

func (b *browser) event(ev any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch ev := ev.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, ev.Request.URL)
	case *log.EventEntryAdded:
		b.problems = append(b.problems, fmt.Sprintf("%s: %s", ev.Entry.Level, ev.Entry.Text))
	case *runtime.EventConsoleAPICalled:
		b.problems = append(b.problems, "console: "+ev.Type.String())
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, "exception: "+ev.ExceptionDetails.Text)
	}
}

// load shows html as a screen of that size would, over HTTP.
func (b *browser) load(t *testing.T, html []byte, width, height int64, scheme string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Write(html)
	}))
	defer server.Close()
	b.mu.Lock()
	b.problems, b.requests, b.url = nil, nil, server.URL+"/report.html"
	b.mu.Unlock()
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, media); err != nil {
		t.Fatalf("choosing a colour scheme: %v", err)
	}
	size := []chromedp.EmulateViewportOption{}
	if width < 500 {
		size = append(size, chromedp.EmulateMobile)
	}
	if err := chromedp.Do(b.ctx, chromedp.EmulateViewport(width, height, size...), chromedp.Navigate(b.url)); err != nil {
		t.Fatalf("opening the page: %v", err)
	}
}

// said is what the browser complained of, and what it asked for beside the page itself.
func (b *browser) said() (problems, requests []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, url := range b.requests {
		if url != b.url && !strings.HasPrefix(url, "data:") {
			requests = append(requests, url)
		}
	}
	return b.problems, requests
}

// saidAtLeast is said, once there is so much: the browser tells of a page in events of their own, which may come after the page.
func (b *browser) saidAtLeast(problems, requests int) (p, r []string) {
	for until := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if p, r = b.said(); len(p) >= problems && len(r) >= requests || time.Now().After(until) {
			return p, r
		}
	}
}

// open loads a page of which nobody may complain and which may ask for nothing.
func (b *browser) open(t *testing.T, html []byte, width, height int64, scheme string) {
	t.Helper()
	b.load(t, html, width, height, scheme)
	problems, requests := b.said()
	for _, p := range problems {
		t.Errorf("the browser says %s", p)
	}
	for _, url := range requests {
		t.Errorf("the page asks for %s", url)
	}
}

func evaluate[T any](t *testing.T, b *browser, script string) T {
	t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](script))
	if err != nil {
		t.Fatalf("asking the browser: %v", err)
	}
	return v
}

// shot leaves a picture of the whole page in $COTENANT_SHOTS, for a person to look at.
func (b *browser) shot(t *testing.T, name string) {
	dir := os.Getenv("COTENANT_SHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		t.Fatalf("taking a picture: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		t.Fatal(err)
	}
}

// print makes the page a PDF.
func (b *browser) print(t *testing.T, name string) []byte {
	t.Helper()
	pdf, err := chromedp.Run(b.ctx, chromedp.PrintToPDF(chromedp.PDFPaper(chromedp.PaperA4), chromedp.PDFPreferCSSPageSize()))
	if err != nil {
		t.Fatalf("printing: %v", err)
	}
	if dir := os.Getenv("COTENANT_SHOTS"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name+".pdf"), pdf, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return pdf
}

// overflowScript names elements that reach over the page's side, but those that scroll by themselves.
const overflowScript = `[...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll") && !e.closest("svg") && e.getClientRects().length &&
	e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.tagName + "." + e.className + " " + e.textContent.slice(0, 40))
	.concat(document.documentElement.scrollWidth > document.documentElement.clientWidth ? ["page is " + document.documentElement.scrollWidth + " wide"] : [])`

// contrastScript lists texts whose contrast with what is behind them is below WCAG's 4.5 to 1. A mark behind a label has a halo of the background around it.
const contrastScript = `(() => {
	const parse = c => (c.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
	const lum = c => { const f = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 }; return 0.2126 * f(c[0]) + 0.7152 * f(c[1]) + 0.0722 * f(c[2]) };
	const behind = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c } return [255, 255, 255] };
	const low = new Set();
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	let seen = 0;
	for (let n = walk.nextNode(); n; n = walk.nextNode()) {
		const e = n.parentElement;
		if (!n.data.trim() || ["SCRIPT", "STYLE", "title", "desc"].includes(e.tagName)) continue;
		const s = getComputedStyle(e);
		const a = lum(parse(e.closest("svg") ? s.fill : s.color)), b = lum(behind(e));
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		seen++;
		if (ratio < 4.5) low.add(ratio.toFixed(2) + ": " + e.tagName + " " + n.data.trim().slice(0, 40));
	}
	return seen < 100 ? ["only " + seen + " texts on the page"] : [...low];
})()`

// lookAt shows a page as a phone, a desktop, a desktop in the dark and a printer would, and tests each.
func lookAt(t *testing.T, b *browser, name string, html []byte) {
	for _, screen := range []struct {
		name          string
		width, height int64
		scheme        string
	}{{"narrow", 280, 600, "light"}, {"phone", 360, 740, "light"}, {"phone-dark", 360, 740, "dark"}, {"desktop", 1280, 900, "light"}, {"desktop-dark", 1280, 900, "dark"}} {
		b.open(t, html, screen.width, screen.height, screen.scheme)
		for _, e := range evaluate[[]string](t, b, overflowScript) {
			t.Errorf("%s, %s: reaches over the side: %s", name, screen.name, e)
		}
		for _, e := range evaluate[[]string](t, b, contrastScript) {
			t.Errorf("%s, %s: too little contrast: %s", name, screen.name, e)
		}
		b.shot(t, name+"-"+screen.name)
	}
	if n := evaluate[int](t, b, `[...document.querySelectorAll("svg[role=img]")].filter(s => !s.querySelector(":scope > title").textContent || !s.querySelector(":scope > desc").textContent).length`); n > 0 {
		t.Errorf("%s: %d charts without a title or a description", name, n)
	}
	if ids := evaluate[[]string](t, b, `(l => l.filter((x, i) => l.indexOf(x) != i))([...document.querySelectorAll("[id]")].map(e => e.id))`); len(ids) > 0 {
		t.Errorf("%s: ids twice: %v", name, ids)
	}
	if links := evaluate[[]string](t, b, `[...document.querySelectorAll("a[href^='#']")].map(a => a.getAttribute("href")).filter(h => !document.getElementById(h.slice(1)))`); len(links) > 0 {
		t.Errorf("%s: links that lead nowhere: %v", name, links)
	}
	pdf := b.print(t, name)
	if pages := strings.Count(string(pdf), "/Type /Page\n") + strings.Count(string(pdf), "/Type /Page "); pages < 2 || pages > 20 {
		t.Errorf("%s: printed on %d pages", name, pages)
	}
	for id, want := range evaluate[map[string]string](t, b, `Object.fromEntries([...document.querySelectorAll("script")].map(s => [s.id, s.textContent]))`) {
		if !json.Valid([]byte(want)) {
			t.Errorf("%s: what the browser has of %s is no JSON", name, id)
		}
	}
}

func TestBrowserSoak(t *testing.T) {
	b := newBrowser(t)
	lookAt(t, b, "good-100", page(t, good).HTML)
	b.open(t, page(t, hostileRun(t)).HTML, 360, 740, "dark")
	for _, e := range evaluate[[]string](t, b, overflowScript) {
		t.Errorf("a hostile text reaches over the side: %s", e)
	}
	if n := evaluate[int](t, b, `document.querySelectorAll("img, svg [onload], [onerror]").length`); n > 0 {
		t.Errorf("hostile texts became %d elements", n)
	}
}

func TestBrowserInterfere(t *testing.T) {
	b := newBrowser(t)
	p, err := matrixPageOf(t, matrix, "p99_us=150")
	if err != nil {
		t.Fatal(err)
	}
	lookAt(t, b, "matrix", p.HTML)
	if p, err = matrixPageOf(t, spoiledMatrix(t), ""); err != nil {
		t.Fatal(err)
	}
	b.open(t, p.HTML, 360, 740, "light")
	for _, e := range evaluate[[]string](t, b, overflowScript) {
		t.Errorf("of a spoiled run: reaches over the side: %s", e)
	}
	b.shot(t, "spoiled")
}

func TestBrowserCompare(t *testing.T) {
	b := newBrowser(t)
	p, err := Compare(declaredRun(t, "one", 1), declaredRun(t, "a server with quite a long name, version 1.2.3, --flag 4", 2), "server", "test")
	if err != nil {
		t.Fatal(err)
	}
	lookAt(t, b, "compare", p.HTML)
}

// What the browser's tests look for they find.
func TestBrowserFinds(t *testing.T) {
	b := newBrowser(t)
	p := string(page(t, good).HTML)
	spoiled := strings.Replace(p, "<main>", `<main><p class="wide">a line that is as wide as no phone</p><img src="/x.png" alt=""/><p class="pale">pale</p>`, 1)
	spoiled = strings.Replace(spoiled, "</style>", ".wide { width: 900px; } .pale { color: #ccc; background: #fff; }</style>", 1)
	spoiled = regexp.MustCompile(`<meta http-equiv[^>]*>`).ReplaceAllString(spoiled, "")
	b.load(t, []byte(spoiled), 360, 740, "light")
	if len(evaluate[[]string](t, b, overflowScript)) == 0 {
		t.Error("a line of 900 px isn't found")
	}
	if low := evaluate[[]string](t, b, contrastScript); len(low) != 1 {
		t.Errorf("of too little contrast: %q, want one", low)
	}
	if _, requests := b.saidAtLeast(0, 1); len(requests) != 1 || !strings.HasSuffix(requests[0], "/x.png") {
		t.Errorf("foreign requests: %q, want one", requests)
	}
	// Under the page's own policy the same picture isn't even asked for, a script doesn't run, and the browser complains.
	spoiled = strings.Replace(p, "<main>", `<main><img src="/x.png" alt=""/><script>document.title = "ran"</script>`, 1)
	b.load(t, []byte(spoiled), 360, 740, "light")
	if problems, _ := b.saidAtLeast(2, 0); len(problems) < 2 {
		t.Errorf("the browser says %q of a page that breaks its policy", problems)
	}
	if evaluate[string](t, b, "document.title") == "ran" {
		t.Error("a script ran")
	}
}
