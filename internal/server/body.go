package server

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"cotenant/internal/openai"
)

// readBody reads a JSON body within the limits. After a success, release gives its share of the memory budget back.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	if err := checkMediaType(r.Header); err != nil {
		return nil, nil, err
	}
	size := r.ContentLength
	if size > s.cfg.MaxBody {
		return nil, nil, s.tooLarge()
	}
	if size < 0 { // chunked: it may grow to the limit
		size = s.cfg.MaxBody
	}
	if s.bodies.Add(size) > s.cfg.MaxBodies {
		s.bodies.Add(-size)
		return nil, nil, &failure{reason: reasonBusy, retryAfter: time.Second, err: &openai.Error{Status: 429,
			Type: openai.TypeRateLimit, Code: "rate_limit_exceeded", Message: "too many request bodies at once; try again later"}}
	}
	release = func() { s.bodies.Add(-size) }
	if r.ContentLength > 0 {
		body = make([]byte, 0, min(r.ContentLength, 64<<10)+1)
	}
	body, err = readAll(http.MaxBytesReader(w, r.Body, s.cfg.MaxBody), body, r.ContentLength)
	if err == nil {
		// The deadline of limitReads would end the wait for the answer too, which watches the connection by reading from it.
		http.NewResponseController(w).SetReadDeadline(time.Time{}) //nolint:errcheck // see limitReads
		return body, release, nil
	}
	release()
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, nil, s.tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, nil, errSlowClient
	}
	return nil, nil, openai.BadRequest("", "body can't be read: it ends before its length or is framed wrongly")
}

// limitReads gives a request with a body its time for that. Where the body isn't read to its end the deadline stays, for whoever
// passes over what is left: a client that never sends it would hold the handler for ever.
func (s *Server) limitReads(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		rc := http.NewResponseController(w)
		rc.SetReadDeadline(time.Now().Add(s.cfg.BodyTimeout)) //nolint:errcheck // a writer without deadlines (tests) has its body in memory
	}
}

// mostPassedOver is what is read of a body that nobody wants: three times the default limit.
const mostPassedOver = 32 << 20

// passOver reads what a refused request has left of its body, and reports whether that was all of it. Many clients read nothing
// before they have sent everything: closing on them resets the connection, and they never see why they were refused. A client that
// asks first (Expect: 100-continue) hasn't sent anything.
func passOver(r *http.Request) bool {
	if r.ContentLength > mostPassedOver || r.Header.Get("Expect") != "" {
		return false
	}
	_, err := io.CopyN(io.Discard, r.Body, mostPassedOver)
	return err == io.EOF
}

// readAll appends what r holds to b, up to EOF. b doubles as it fills, but not beyond size where that isn't negative.
func readAll(r io.Reader, b []byte, size int64) ([]byte, error) {
	for {
		if len(b) == cap(b) {
			grown := 2*cap(b) + 512
			if size >= 0 {
				grown = max(min(grown, int(size)+1), len(b)+1) // the last byte is for the read that finds the end
			}
			b = append(make([]byte, 0, grown), b...)
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
}

func (s *Server) tooLarge() error {
	return &failure{reason: reasonTooLarge, err: &openai.Error{Status: 413, Type: openai.TypeInvalidRequest,
		Code: "request_too_large", Message: "body is larger than " + strconv.FormatInt(s.cfg.MaxBody, 10) + " bytes"}}
}

// checkMediaType refuses what isn't JSON. That also keeps web pages from posting to a server on loopback behind their reader's
// back: browsers send other sites' forms and plain text unasked, JSON only after asking (CORS), which is never granted.
func checkMediaType(h http.Header) error {
	refuse := func(format string) error {
		return &failure{reason: reasonMediaType, err: &openai.Error{Status: 415, Type: openai.TypeInvalidRequest,
			Code: "unsupported_media_type", Message: format}}
	}
	if enc := h.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return refuse("Content-Encoding " + strconv.Quote(clip(enc)) + " is not supported; send the body as it is")
	}
	ct := h.Get("Content-Type")
	if ct == "" {
		return nil
	}
	media, params, err := mime.ParseMediaType(ct)
	if err != nil || media != "application/json" && !(strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json")) {
		return refuse("Content-Type is " + strconv.Quote(clip(ct)) + "; send `Content-Type: application/json`")
	}
	if cs := params["charset"]; cs != "" && !strings.EqualFold(cs, "utf-8") && !strings.EqualFold(cs, "utf8") {
		return refuse("charset is " + strconv.Quote(clip(cs)) + "; JSON is UTF-8")
	}
	return nil
}
