package soak

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"cotenant/internal/ledger"
)

// judgeBytes reads body as a response's, cut into reads of sizes that cut gives.
func judgeBytes(body []byte, mediaType string, cut func() int) ledger.Row {
	row := ledger.Row{Attempt: 1, Oracle: ledger.OracleNone, PromptCommit: strings.Repeat("0", 32), SentUS: ledger.Some(0), HeadersUS: ledger.Some(0), HTTPStatus: ledger.Some(200)}
	_, cancel := context.WithCancelCause(context.Background())
	w := newWatch(cancel, 0)
	defer w.stop()
	a := &answer{row: &row, scratch: newScratch(), inbandCode: -1}
	r := &bodyReader{src: &pieces{body, cut}, clk: &clock{start: time.Now()}, watch: w}
	resp := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {mediaType}}}
	row.Outcome, row.Error = a.response(resp, r)
	row.EndUS = 1 << 40
	a.settle()
	if row.Outcome == ledger.OK {
		row.OutputCommit = strings.Repeat("0", 32)
	}
	row.Error = clip(row.Error, ledger.MaxText)
	// Moments depend on the clock, not on the bytes.
	for _, t := range []*ledger.Opt{&row.FirstEventUS, &row.FirstTokenUS, &row.FirstContentUS, &row.LastTokenUS} {
		t.V = 0
	}
	row.Buffered = false
	return row
}

// pieces hands out b in pieces.
type pieces struct {
	b   []byte
	cut func() int
}

func (p *pieces) Read(into []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(into[:min(len(into), p.cut())], p.b)
	p.b = p.b[n:]
	return n, nil
}

// FuzzAnswer holds that no bytes break a row, and that what a row says doesn't depend on how they were cut.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		oneContent + restOfIt, "data: {\"error\":{\"message\":\"x\",\"code\":429}}\n\n", "\xef\xbb\xbfdata:{}\r\rdata: [DONE]", ": ping\n\n", "<html>", "{\"choices\":[]}",
		"\x1f\x8b", " \n\ndata: {\"choices\":[{\"text\":\"x\",\"finish_reason\":\"stop\"}],\"usage\":{\"completion_tokens\":9007199254740993}}\n\n",
	} {
		f.Add([]byte(seed), "text/event-stream", uint64(1))
		f.Add([]byte(seed), "application/json", uint64(2))
	}
	f.Fuzz(func(t *testing.T, body []byte, mediaType string, seed uint64) {
		whole := judgeBytes(bytes.Clone(body), mediaType, func() int { return 1 << 20 })
		if err := whole.Check(); err != nil {
			t.Fatal(err)
		}
		if whole.Outcome == ledger.OK && (whole.TextBytes == 0 || whole.Deltas == 0 || whole.FinishReason == "" && !whole.Done) {
			t.Errorf("ok without an answer: %+v", whole)
		}
		rng := rand.New(rand.NewPCG(seed, 1))
		if cut := judgeBytes(body, mediaType, func() int { return 1 + rng.IntN(7) }); cut != whole {
			t.Errorf("re-cut\n%+v\nwhole\n%+v", cut, whole)
		}
	})
}
