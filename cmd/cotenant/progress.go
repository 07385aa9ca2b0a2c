package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"cotenant/internal/soak"
)

// progress shows a run on stderr: a bar that is drawn over on a terminal, a line every ten seconds elsewhere.
type progress struct {
	w        io.Writer
	terminal bool
	total    int64

	mu    sync.Mutex
	last  time.Time
	shown bool // a bar stands on the terminal's last line
}

const quietPeriod = 10 * time.Second

func newProgress(w io.Writer, total int64) *progress {
	f, ok := w.(*os.File)
	return &progress{w: w, terminal: ok && term.IsTerminal(int(f.Fd())), total: total, last: time.Now()}
}

func (p *progress) show(s soak.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.terminal:
		fmt.Fprintf(p.w, "\r\x1b[K%s %s", bar(s.Completed+s.Failed, p.total, 24), progressText(s))
		p.shown = true
	case time.Since(p.last) >= quietPeriod:
		p.last = time.Now()
		fmt.Fprintln(p.w, progressText(s))
	}
}

// count shows how many of total steps are done, with a text beside.
func (p *progress) count(done, total int64, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.terminal:
		fmt.Fprintf(p.w, "\r\x1b[K%s %d/%d  %s", bar(done, total, 24), done, total, text)
		p.shown = true
	case time.Since(p.last) >= quietPeriod:
		p.last = time.Now()
		fmt.Fprintf(p.w, "%d/%d  %s\n", done, total, text)
	}
}

// log prints a line that stays.
func (p *progress) log(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprintln(p.w, line)
}

func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

func bar(done, total int64, width int) string {
	filled := 0
	if total > 0 {
		filled = int(min(done, total) * int64(width) / total)
	}
	return "[" + strings.Repeat("█", filled) + strings.Repeat("·", width-filled) + "]"
}

func progressText(s soak.Progress) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d/%d", s.Completed+s.Failed, s.Contexts)
	if s.Turns > s.Completed {
		fmt.Fprintf(&b, "  %d turns", s.Turns)
	}
	if sec := s.Elapsed.Seconds(); sec > 0 {
		fmt.Fprintf(&b, "  %.1f/s", float64(s.Turns)/sec)
	}
	fmt.Fprintf(&b, "  %d in flight", s.InFlight)
	if s.LastTTFT > 0 {
		fmt.Fprintf(&b, "  TTFT %s", s.LastTTFT.Round(time.Millisecond))
	}
	if s.OracleChecked > 0 {
		fmt.Fprintf(&b, "  oracle %d/%d", s.OraclePassed, s.OracleChecked)
	}
	if s.Failed > 0 || s.Retries > 0 {
		fmt.Fprintf(&b, "  failed %d, retried %d", s.Failed, s.Retries)
	}
	if s.LastError != "" {
		fmt.Fprintf(&b, "  last error: %s", s.LastError)
	}
	if s.Draining {
		b.WriteString("  draining")
	}
	return b.String()
}
