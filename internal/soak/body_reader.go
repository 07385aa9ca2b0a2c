package soak

import (
	"errors"
	"io"
	"time"
)

// maxBody caps what one response may send: beyond it the attempt is oversize.
const maxBody = 64 << 20

var (
	errCompressed = errors.New("the body is compressed although identity was asked for")
	errBodyLimit  = errors.New("the body exceeds the size limit")
)

// bodyReader counts a body's bytes, notes when they came, and restarts the idle watch with each read.
type bodyReader struct {
	src   io.Reader
	clk   *clock
	watch *watch
	idle  time.Duration

	n       int64
	at      int64  // moment of the last read that brought bytes
	head    []byte // the first bytes, as evidence for a body that is no stream
	peeked  []byte // read by sniff and not handed out yet
	err     error  // held back until peeked is handed out
	started bool

	unwatched bool // the idle watch is no longer restarted
}

// headSize is how much of a body is kept as evidence; error objects fit in.
const headSize = 16 << 10

func (r *bodyReader) Read(p []byte) (int, error) {
	if len(r.peeked) > 0 {
		n := copy(p, r.peeked)
		r.peeked = r.peeked[n:]
		return n, nil
	}
	if r.err != nil {
		return 0, r.err
	}
	return r.read(p)
}

func (r *bodyReader) read(p []byte) (int, error) {
	if !r.started {
		r.started = true
		r.watch.arm(r.idle, errIdleTimeout)
	}
	n, err := r.src.Read(p)
	if n == 0 {
		return 0, err
	}
	r.at = r.clk.now()
	if !r.unwatched {
		r.watch.arm(r.idle, errIdleTimeout)
	}
	r.n += int64(n)
	if room := headSize - len(r.head); room > 0 {
		r.head = append(r.head, p[:min(n, room)]...)
		if compressed(r.head) {
			return 0, errCompressed
		}
	}
	if r.n > maxBody {
		return 0, errBodyLimit
	}
	return n, err
}

// compressed knows the magic numbers of gzip (RFC 1952) and Zstandard (RFC 8878): proxies compress without saying so.
func compressed(head []byte) bool {
	return len(head) >= 2 && head[0] == 0x1f && head[1] == 0x8b || len(head) >= 4 && string(head[:4]) == "\x28\xb5\x2f\xfd"
}

// sniff reads on until the first byte that isn't white space and returns it without taking it from the reader; 0 at the end.
func (r *bodyReader) sniff(buf []byte) (byte, error) {
	for {
		for _, ch := range r.peeked {
			if ch != ' ' && ch != '\t' && ch != '\r' && ch != '\n' {
				return ch, nil
			}
		}
		if r.err != nil {
			return 0, r.err
		}
		if len(r.peeked) == len(buf) {
			return '\n', nil
		}
		n, err := r.read(buf[len(r.peeked):])
		r.peeked = buf[:len(r.peeked)+n]
		r.err = err
	}
}
