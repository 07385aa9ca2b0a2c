package openai

import (
	"bytes"
	"errors"
	"io"
)

// DefaultEventLimit caps the bytes of one server-sent event: some servers send a whole answer in one.
const DefaultEventLimit = 16 << 20

// ErrEventTooLong is returned by SSEReader.Next for an event beyond the reader's limit. It is an outcome, never a silent end.
var ErrEventTooLong = errors.New("server-sent event exceeds the size limit")

var utf8BOM = []byte{0xEF, 0xBB, 0xBF}

// SSEEvent is one dispatched event. Its slices belong to the reader and are valid until the next call of Next.
type SSEEvent struct {
	Type []byte // the "event" field; empty means "message"
	Data []byte // data lines joined with LF; empty for an event whose only data line was empty
	// Unterminated: the stream ended cleanly without the blank line that dispatches an event. WHATWG drops such an event; it
	// is handed out here because servers are seen that end so, and the caller decides.
	Unterminated bool
}

// SSEReader parses text/event-stream by the rules of the WHATWG HTML standard, section 9.2.6: LF, CR and CRLF end a line, also
// where the two halves of a CRLF arrive apart, one byte-order mark is dropped, a line that begins with a colon is a comment, one
// space after the colon is dropped, several data lines are joined with LF, and a block without a data line is not dispatched (so a
// comment and its blank line are no event). How the bytes are cut into reads changes nothing in what comes out. One goroutine
// uses a reader.
//
// Bytes are not decoded: invalid UTF-8 reaches the caller as it came, so that a character split between reads stays whole.
type SSEReader struct {
	src   io.Reader
	limit int

	buf        []byte // unread bytes are buf[start:end]
	start, end int
	scanned    int  // bytes of buf[start:end] known to hold no line end
	skipLF     bool // the last line ended in CR: a LF right behind belongs to it
	begun      bool // the first line was taken, so a byte-order mark is no longer possible
	err        error

	data, typ []byte
	seen      SSESeen
}

// SSESeen is what a stream's bytes looked like: all of it legal, all of it known to trip readers.
type SSESeen struct {
	Comments  int  // comment lines: keep-alives, which are neither tokens nor events
	Empty     int  // events with empty data
	BOM       bool // a byte-order mark at the start
	CR        bool // a line end other than LF
	NoSpace   bool // a "data:" without a space behind it
	MultiLine bool // an event of several data lines
}

// NewSSEReader reads events from src, each at most limit bytes long (0: DefaultEventLimit).
func NewSSEReader(src io.Reader, limit int) *SSEReader {
	r := &SSEReader{buf: make([]byte, 4096)}
	r.Reset(src, limit)
	return r
}

// Reset makes r read from src and keeps its buffers, so that a worker can use one reader for all its streams. A buffer that one
// long event had grown is given back.
func (r *SSEReader) Reset(src io.Reader, limit int) {
	if limit <= 0 {
		limit = DefaultEventLimit
	}
	const keep = 256 << 10
	buf, data, typ := r.buf, r.data[:0], r.typ[:0]
	if cap(buf) > keep {
		buf = make([]byte, 4096)
	}
	if cap(data) > keep {
		data = nil
	}
	*r = SSEReader{src: src, limit: limit, buf: buf, data: data, typ: typ}
}

// Seen returns what has been seen so far.
func (r *SSEReader) Seen() SSESeen { return r.seen }

// Next returns the next event. It returns io.EOF after a clean end, ErrEventTooLong, or the error of the source; an
// event that a failing source cut short is not handed out. Every error is final.
func (r *SSEReader) Next() (SSEEvent, error) {
	r.data, r.typ = r.data[:0], r.typ[:0]
	hasData := false
	for {
		line, err := r.line()
		if err != nil {
			if err == io.EOF && hasData && len(r.data) > 1 {
				return SSEEvent{Type: r.typ, Data: r.data[:len(r.data)-1], Unterminated: true}, nil
			}
			return SSEEvent{}, err
		}
		if len(line) == 0 {
			if hasData {
				if len(r.data) == 1 {
					r.seen.Empty++
				}
				return SSEEvent{Type: r.typ, Data: r.data[:len(r.data)-1]}, nil
			}
			r.data, r.typ, hasData = r.data[:0], r.typ[:0], false
			continue
		}
		field, value, found := bytes.Cut(line, []byte{':'})
		if found && len(field) == 0 {
			r.seen.Comments++
			continue
		}
		space := len(value) > 0 && value[0] == ' '
		if space {
			value = value[1:]
		}
		switch string(field) {
		case "data":
			r.seen.NoSpace = r.seen.NoSpace || !space && len(value) > 0
			r.seen.MultiLine = r.seen.MultiLine || hasData
			if len(r.data)+len(value) > r.limit {
				r.err = ErrEventTooLong
				return SSEEvent{}, r.err
			}
			r.data = append(append(r.data, value...), '\n')
			hasData = true
		case "event":
			r.typ = append(r.typ[:0], value...)
		}
	}
}

// line returns the next line without its end. The slice is valid until the next call.
func (r *SSEReader) line() ([]byte, error) {
	for {
		if r.skipLF && r.start < r.end {
			if r.buf[r.start] == '\n' {
				r.start++
			}
			r.skipLF = false
		}
		pending := r.buf[r.start:r.end]
		if i := lineEnd(pending[r.scanned:]); i >= 0 {
			i += r.scanned
			r.skipLF = pending[i] == '\r'
			r.seen.CR = r.seen.CR || r.skipLF
			r.start += i + 1
			return r.first(pending[:i]), nil
		}
		r.scanned = len(pending)
		if r.err != nil {
			if r.err == io.EOF && len(pending) > 0 {
				r.start = r.end
				return r.first(pending), nil
			}
			return nil, r.err
		}
		r.fill()
	}
}

// first notes that a line was taken, and drops the byte-order mark of the first.
func (r *SSEReader) first(line []byte) []byte {
	r.scanned = 0
	if !r.begun {
		r.begun = true
		line, r.seen.BOM = bytes.CutPrefix(line, utf8BOM)
	}
	return line
}

// fill reads once into the buffer, which it moves or grows first when it is full.
func (r *SSEReader) fill() {
	if r.start > 0 && (r.start == r.end || r.end == len(r.buf)) {
		copy(r.buf, r.buf[r.start:r.end])
		r.end -= r.start
		r.start = 0
	}
	if r.end == len(r.buf) {
		// A line holds a field name and a colon beside the data that the limit is about.
		if len(r.buf) > r.limit+16 {
			r.err = ErrEventTooLong
			return
		}
		grown := make([]byte, min(2*len(r.buf), r.limit+17))
		copy(grown, r.buf[:r.end])
		r.buf = grown
	}
	for range 100 {
		n, err := r.src.Read(r.buf[r.end:])
		r.end += n
		r.err = err
		if n > 0 || err != nil {
			return
		}
	}
	r.err = io.ErrNoProgress
}

// lineEnd is the index of the first CR or LF, or -1.
func lineEnd(b []byte) int {
	lf := bytes.IndexByte(b, '\n')
	if lf >= 0 {
		b = b[:lf]
	}
	if cr := bytes.IndexByte(b, '\r'); cr >= 0 {
		return cr
	}
	return lf
}
