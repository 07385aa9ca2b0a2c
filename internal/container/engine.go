package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cotenant/internal/observe"
)

const (
	// apiVersion is the engine API that is spoken: 1.41 has platforms at creation, and 20.10 and all later engines know it, or a
	// minimum above it that is then spoken instead.
	apiVersion = "1.41"
	// callTimeout bounds a call that does little.
	callTimeout = 30 * time.Second
	maxAnswer   = 8 << 20
)

// engine is a client of one Docker engine's API over its local socket. It may be used by several goroutines.
type engine struct {
	socket string
	client *http.Client
	prefix string // "/v1.41"
	// patience is how long a cleanup waits for the engine to list nothing.
	patience time.Duration
}

// apiError is an answer that is no success.
type apiError struct {
	Code    int // of HTTP
	Message string
	Call    string
}

func (e *apiError) Error() string {
	return fmt.Sprintf("%s: the engine answered %d: %s", e.Call, e.Code, observe.Clip(e.Message))
}

// blocked is an error with the status that says what is in the way.
type blocked struct {
	status observe.Status
	text   string
}

func (b *blocked) Error() string { return b.text }

func blockedf(status observe.Status, format string, args ...any) error {
	return &blocked{status, fmt.Sprintf(format, args...)}
}

// findSocket returns the engine's local socket: DOCKER_HOST where it names one, the usual places else.
func findSocket(env []string) (string, error) {
	if runtime.GOOS != "linux" {
		return "", blockedf(observe.BlockedByEnvironment, "the probe's container needs a Linux engine and a program for Linux, and this one is for %s: run it in WSL2 or on the Linux host", runtime.GOOS)
	}
	if host := variable(env, "DOCKER_HOST"); host != "" {
		path, ok := strings.CutPrefix(host, "unix://")
		if !ok {
			return "", blockedf(observe.BlockedByEnvironment, "DOCKER_HOST names no local socket: this program's file must be on the engine's host")
		}
		if !isSocket(path) {
			return "", blockedf(observe.BlockedByEnvironment, "no socket at %s, where DOCKER_HOST says the engine is", path)
		}
		return path, nil
	}
	candidates := []string{"/var/run/docker.sock", "/run/docker.sock"}
	if dir := variable(env, "XDG_RUNTIME_DIR"); dir != "" {
		candidates = append(candidates, filepath.Join(dir, "docker.sock"))
	}
	if home := variable(env, "HOME"); home != "" {
		candidates = append(candidates, filepath.Join(home, ".docker/run/docker.sock"))
	}
	for _, path := range candidates {
		if isSocket(path) {
			return path, nil
		}
	}
	return "", blockedf(observe.BlockedByEnvironment, "no Docker engine: no socket in the usual places; DOCKER_HOST=unix://… names another")
}

func isSocket(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&fs.ModeSocket != 0
}

func variable(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v
		}
	}
	return ""
}

// version is what GET /version answers.
type version struct {
	Version, APIVersion, MinAPIVersion, Os, Arch, KernelVersion string
}

// dial finds an engine and agrees on a version.
func dial(ctx context.Context, socket string) (*engine, version, error) {
	e := &engine{socket: socket, patience: goneTimeout, client: &http.Client{Transport: &http.Transport{
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: 64 << 10,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
	var v version
	if err := e.call(ctx, callTimeout, http.MethodGet, "/version", nil, nil, &v); err != nil {
		return nil, v, err
	}
	if olderAPI(v.APIVersion, apiVersion) {
		return nil, v, blockedf(observe.BlockedByRuntimeVersion, "the engine %s speaks API %s, %s is needed (Docker 20.10)", observe.Clip(v.Version), observe.Clip(v.APIVersion), apiVersion)
	}
	e.prefix = "/v" + apiVersion
	if olderAPI(apiVersion, v.MinAPIVersion) {
		e.prefix = "/v" + v.MinAPIVersion
	}
	return e, v, nil
}

// olderAPI reports whether API version a is older than b, or no version at all. An absent b is older than any.
func olderAPI(a, b string) bool {
	parse := func(s string) int {
		major, minor, ok := strings.Cut(s, ".")
		x, err1 := strconv.ParseUint(major, 10, 16)
		y, err2 := strconv.ParseUint(minor, 10, 16)
		if !ok || err1 != nil || err2 != nil {
			return -1
		}
		return int(x)<<16 + int(y)
	}
	return parse(a) < parse(b) || parse(a) < 0
}

// open sends a request and returns the answer's body, which the caller closes. An answer of 400 and above is an apiError.
func (e *engine) open(ctx context.Context, method, path string, query url.Values, body any) (*http.Response, error) {
	call := method + " " + path
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("%s: encoding: %w", call, err)
		}
		content = bytes.NewReader(b)
	}
	target := "http://docker" + e.prefix + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", call, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, e.unreachable(ctx, call, err)
	}
	if resp.StatusCode >= 400 {
		defer resp.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		var m struct{ Message string }
		if json.Unmarshal(b, &m) != nil || m.Message == "" {
			m.Message = string(b)
		}
		return nil, &apiError{resp.StatusCode, m.Message, call}
	}
	return resp, nil
}

func (e *engine) unreachable(ctx context.Context, call string, err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded) || ctx.Err() == context.DeadlineExceeded:
		return blockedf(observe.Hung, "%s: the engine at %s did not answer by the deadline", call, e.socket)
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", call, ctx.Err())
	case errors.Is(err, fs.ErrPermission):
		return blockedf(observe.PermissionDenied, "%s: the engine's socket %s may not be opened by this user (group docker may, or root)", call, e.socket)
	case errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist):
		return blockedf(observe.BlockedByEnvironment, "%s: no engine answers at %s", call, e.socket)
	}
	return fmt.Errorf("%s: %w", call, err)
}

// call sends a request and decodes the answer into out, unless that is nil.
func (e *engine) call(ctx context.Context, timeout time.Duration, method, path string, query url.Values, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp, err := e.open(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return e.unreachable(ctx, method+" "+path, err)
	}
	if len(b) > maxAnswer {
		return fmt.Errorf("%s %s: the engine's answer has more than %d bytes", method, path, maxAnswer)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%s %s: the engine's answer can't be read: %w", method, path, err)
	}
	return nil
}

// codeOf is the HTTP status of an error; 0 where it isn't an answer.
func codeOf(err error) int {
	var a *apiError
	if errors.As(err, &a) {
		return a.Code
	}
	return 0
}

// filters encodes the engine's filters.
func filters(pairs map[string][]string) url.Values {
	b, err := json.Marshal(pairs)
	if err != nil {
		panic("internal error: " + err.Error())
	}
	return url.Values{"filters": {string(b)}}
}
