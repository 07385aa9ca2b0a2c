package soak

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
	"cotenant/internal/openai"
)

// scratch is what a worker reuses from attempt to attempt.
type scratch struct {
	sse       *openai.SSEReader
	chunk     openai.StreamChunk
	content   []byte // the attempt's answer
	reasoning []byte
	firstID   []byte
	peek      [1024]byte
	head      []byte // a body's first bytes
	joined    []byte
}

func newScratch() *scratch { return &scratch{sse: openai.NewSSEReader(nil, 0)} }

// reset empties the buffers and gives back what one long answer had grown.
func (s *scratch) reset() {
	const keep = 256 << 10
	for _, b := range []*[]byte{&s.content, &s.reasoning, &s.head, &s.firstID, &s.joined} {
		if cap(*b) > keep {
			*b = nil
		}
		*b = (*b)[:0]
	}
}

// answer folds a response's events into a row.
type answer struct {
	row *ledger.Row
	*scratch

	finished   bool
	usages     int
	inband     bool  // an error object, at any place
	inbandCode int64 // its code, -1 where it has none
	message    string
	bad        error // an event that isn't a JSON object
	torn       bool  // bad is the last event, cut by the end of the body
	plan       *planned
}

// stream reads events up to [DONE] or the end of the body. The error is the body's; a clean end is nil.
func (a *answer) stream(r *bodyReader) error {
	a.sse.Reset(r, 0)
	defer a.look()
	for {
		e, err := a.sse.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if e.Unterminated {
			a.quirk(ledger.QuirkNoFinalBlank)
		}
		if len(bytes.TrimSpace(e.Data)) == 0 {
			a.quirk(ledger.QuirkEmptyData)
			continue
		}
		a.row.Events++
		moment := at(r.at, a.row.HeadersUS)
		if !a.row.FirstEventUS.OK {
			a.row.FirstEventUS = moment
		}
		if string(bytes.TrimSpace(e.Data)) == "[DONE]" {
			a.row.Done = true
			return nil
		}
		a.event(e, moment)
		if a.inband && (r.idle == 0 || r.idle > afterError) {
			r.idle = afterError
		}
	}
}

// afterError is how long a stream may stand still after an error: some servers keep it open for good.
const afterError = time.Second

// look notes what the bytes looked like.
func (a *answer) look() {
	seen := a.sse.Seen()
	for _, q := range []struct {
		seen bool
		bit  ledger.Quirk
	}{
		{seen.Comments > 0, ledger.QuirkComment}, {seen.Empty > 0, ledger.QuirkEmptyData}, {seen.BOM, ledger.QuirkBOM},
		{seen.CR, ledger.QuirkCR}, {seen.NoSpace, ledger.QuirkNoSpace}, {seen.MultiLine, ledger.QuirkMultiLine},
	} {
		if q.seen {
			a.quirk(q.bit)
		}
	}
}

func (a *answer) quirk(q ledger.Quirk) { a.row.Quirks |= int64(q) }

func (a *answer) event(e openai.SSEEvent, moment ledger.Opt) {
	c := &a.chunk
	if err := c.Decode(e.Data); err != nil {
		if a.bad == nil {
			a.bad, a.torn = err, e.Unterminated
		}
		return
	}
	if string(e.Type) == "error" && !c.HasError {
		a.fault(-1, string(e.Data))
	}
	a.take(moment, true)
}

// take folds the present chunk in. Whole bodies, which have no moments, are taken with timed false.
func (a *answer) take(moment ledger.Opt, timed bool) {
	c, row := &a.chunk, a.row
	if c.HasError {
		message := string(c.ErrorMessage)
		if message == "" {
			message = string(c.ErrorType)
		}
		a.fault(c.ErrorCode, message)
	}
	grown := a.usage()
	text := len(c.Content) + len(c.Reasoning) + len(c.Refusal) + c.ToolBytes
	if text > 0 {
		row.Deltas++
		row.TextBytes += int64(text)
		a.content = append(a.content, c.Content...)
		a.reasoning = append(a.reasoning, c.Reasoning...)
		if c.HasUsage {
			a.quirk(ledger.QuirkUsageInContent)
		}
	}
	if timed && (text > 0 || grown) {
		if !row.FirstTokenUS.OK {
			row.FirstTokenUS = moment
			a.plan.reached(loadgen.CancelAfterFirstToken, row.Events)
		}
		row.LastTokenUS = moment
	}
	if timed && len(c.Content) > 0 && !row.FirstContentUS.OK {
		row.FirstContentUS = moment
	}
	a.marks(text)
	if len(c.FinishReason) > 0 {
		a.finished = true
		row.FinishReason = clip(string(c.FinishReason), ledger.MaxFinish)
		// Seen where a server gives up in the middle and still closes its stream in order.
		if row.FinishReason == "error" || row.FinishReason == "abort" {
			a.fault(-1, "finish_reason is "+row.FinishReason)
		}
	}
}

// usage takes the last usage (they are cumulative) and reports whether completion tokens came to light with this chunk: in a chunk
// with choices, before the answer's end. The summary at the end says nothing about a moment.
func (a *answer) usage() (grown bool) {
	c, row := &a.chunk, a.row
	if !c.HasUsage {
		return false
	}
	if a.usages++; a.usages > 1 {
		a.quirk(ledger.QuirkContinuousUsage)
	}
	before := row.CompletionTokens.Or(0)
	for _, n := range []struct {
		into *ledger.Opt
		v    int64
	}{{&row.PromptTokens, c.Usage.Prompt}, {&row.CompletionTokens, c.Usage.Completion}, {&row.CachedTokens, c.Usage.Cached}} {
		if n.v >= 0 {
			*n.into = ledger.Some(min(n.v, maxTokenCount))
		}
	}
	return c.Choices > 0 && len(c.FinishReason) == 0 && !a.finished && row.CompletionTokens.Or(0) > before
}

// maxTokenCount bounds a count in a foreign usage object, so that a row stays writable.
const maxTokenCount = 1 << 32

// marks notes what a reader of such chunks has to know about.
func (a *answer) marks(text int) {
	c := &a.chunk
	for _, q := range []struct {
		seen bool
		bit  ledger.Quirk
	}{
		{c.HasChoice && c.Choices == 0, ledger.QuirkEmptyChoices}, {c.NullUsage, ledger.QuirkNullUsage},
		{c.Role && text == 0, ledger.QuirkRoleOnly}, {len(c.Reasoning) > 0, ledger.QuirkReasoning}, {c.ToolBytes > 0, ledger.QuirkTools},
		{c.InvalidUTF8, ledger.QuirkBadUTF8}, {c.IndexDrift, ledger.QuirkIndexDrift},
	} {
		if q.seen {
			a.quirk(q.bit)
		}
	}
	if !c.HasChoice {
		return
	}
	if a.row.Events <= 1 {
		a.firstID = append(a.firstID[:0], c.ID...)
	} else if !bytes.Equal(a.firstID, c.ID) {
		a.quirk(ledger.QuirkIDChanged)
	}
}

// fault notes an error that came under HTTP 200. The first one is kept.
func (a *answer) fault(code int64, message string) {
	if !a.inband {
		a.inband, a.inbandCode, a.message = true, code, message
	}
}

// outcome judges a stream that was read to err (nil: to its end).
func (a *answer) outcome(err error) (ledger.Outcome, string) {
	switch {
	case a.inband:
		return ledger.InbandError, a.message
	case err != nil:
		return bodyOutcome(err), describe(err)
	case a.bad != nil && (!a.torn || a.finished || a.row.Done):
		return ledger.BadJSON, a.bad.Error()
	case a.bad != nil:
		return ledger.Truncated, "the body ended inside an event"
	case !a.finished && !a.row.Done:
		return ledger.Truncated, "the body ended with neither finish_reason nor [DONE]"
	case a.row.TextBytes == 0:
		return ledger.Empty, "the answer holds no text"
	}
	return ledger.OK, ""
}

// whole judges a body that is no event stream.
func (a *answer) whole(r *bodyReader, mediaType string) (ledger.Outcome, string) {
	body, err := io.ReadAll(io.LimitReader(r, openai.DefaultEventLimit+1))
	if err != nil {
		return bodyOutcome(err), describe(err)
	}
	if len(body) > openai.DefaultEventLimit {
		return ledger.Oversize, "a body that is no stream is too large"
	}
	if err := a.chunk.Decode(body); err != nil {
		if strings.HasSuffix(mediaType, "json") {
			return ledger.BadJSON, err.Error()
		}
		return ledger.BadBody, fmt.Sprintf("neither events nor JSON, %s: %s", mediaType, bytes.TrimSpace(r.head))
	}
	a.take(ledger.Opt{}, false)
	switch {
	case a.inband:
		return ledger.InbandError, a.message
	case a.chunk.HasChoice:
		return ledger.NonStreamed, "a whole JSON body came where a stream was asked for"
	}
	return ledger.BadBody, fmt.Sprintf("JSON without choices: %s", bytes.TrimSpace(r.head))
}

// bodyOutcome names how reading a body failed.
func bodyOutcome(err error) ledger.Outcome {
	switch {
	case errors.Is(err, openai.ErrEventTooLong), errors.Is(err, errBodyLimit):
		return ledger.Oversize
	case errors.Is(err, errCompressed):
		return ledger.Compressed
	}
	if o, ok := endedHere(err); ok {
		return o
	}
	return ledger.TransportMid
}

// endedHere names an end that came from this side.
func endedHere(err error) (ledger.Outcome, bool) {
	switch {
	case errors.Is(err, errHeadersTimeout):
		return ledger.TimeoutHeaders, true
	case errors.Is(err, errIdleTimeout):
		return ledger.TimeoutIdle, true
	case errors.Is(err, errTotalTimeout):
		return ledger.TimeoutTotal, true
	case errors.Is(err, errInterrupted):
		return ledger.Interrupted, true
	case errors.Is(err, errPlanned):
		return ledger.CancelledInject, true
	}
	return "", false
}

// settle fills in what follows from the whole of an attempt.
func (a *answer) settle() {
	row := a.row
	if row.Outcome == ledger.Compressed {
		a.quirk(ledger.QuirkCompressedUnasked)
	}
	if row.Outcome == ledger.OK {
		if row.Done && !a.finished {
			a.quirk(ledger.QuirkNoFinish)
		}
		if !row.Done {
			a.quirk(ledger.QuirkNoDone)
		}
	} else {
		row.WastedTokens = row.CompletionTokens.Or(row.Deltas)
	}
	if n, ok := row.CompletionTokens.Get(); ok && row.Deltas > 0 {
		switch {
		case row.Deltas < n:
			a.quirk(ledger.QuirkMultiTokenDelta)
		case row.Deltas > n:
			a.quirk(ledger.QuirkMoreDeltas)
		}
	}
	row.Buffered = row.IsBuffered()
}

// text is what the output's commitment is over: content, then reasoning.
func (s *scratch) text() []byte {
	s.joined = append(append(s.joined[:0], s.content...), s.reasoning...)
	return s.joined
}
