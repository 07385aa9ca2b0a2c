// Package server answers OpenAI's HTTP API over a Generator.
//
// Handler serves /v1/models, /v1/chat/completions and /v1/completions, /health (ready: 200 while requests can be served) and
// /health/live (200 while the process answers). /metrics and /debug/vars are on Handler too unless Config.AdminSeparate says that
// its listener can be reached from outside: then they are on AdminHandler alone. A request under /v1 needs the API key where one
// is configured; health and the admin paths never do.
//
// Errors have OpenAI's shape on every path. One request lives as follows: it is counted in (or refused: draining, too many), its
// body is read under a limit and a deadline, decoded by package openai, prepared and queued by the Generator, and its chunks are
// written as they come. A client that goes away, or that takes no bytes for Config.WriteTimeout, cancels it.
package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// Config is what a Server is made from. Zero values mean the defaults that are named.
type Config struct {
	Generators []Generator // at least one; one a model id
	APIKey     string      // "": none is demanded; white space around it doesn't count
	Version    string      // of this program, for system_fingerprint and cotenant_build_info

	MaxBody      int64         // bytes of one request body; default 10 MiB
	MaxBodies    int64         // bytes of all bodies in memory; default 256 MiB, at least MaxBody
	MaxRequests  int           // generation requests at once; beyond it they get a 429; default 1024
	BodyTimeout  time.Duration // for reading one body; default 60 s
	WriteTimeout time.Duration // for one write to a client; default 30 s
	// HeaderDelay is how long a stream's headers wait for its first chunk, so that what fails at once still gets a true HTTP
	// status; then they go out, since clients bound their wait for headers. Default 1 s.
	HeaderDelay time.Duration

	AdminSeparate bool         // /metrics and /debug/vars on AdminHandler alone
	Log           *slog.Logger // nil: nothing is logged. Prompts, answers and keys never are
}

// Server is the HTTP side of one or more Generators. It is safe for concurrent use.
type Server struct {
	cfg    Config
	models []Generator
	byID   map[string]Generator
	// fingerprints name what computes, by model id: the same model under the same version, backend and device has the same one.
	fingerprints map[string]string
	keyHash      [sha256.Size]byte
	log          *slog.Logger
	metrics      *metrics
	started      time.Time

	bodies    atomic.Int64  // bytes of request bodies in memory
	preparing chan struct{} // holds an element for each big body that is prepared

	mu       sync.Mutex
	running  int
	draining bool
	idle     chan struct{} // closed when draining and nothing runs
	stop     context.Context
	stopAll  context.CancelFunc
}

// New checks the configuration. It starts no goroutine.
func New(cfg Config) (*Server, error) {
	if len(cfg.Generators) == 0 {
		return nil, errors.New("server: no model to serve")
	}
	key := strings.TrimSpace(cfg.APIKey) // as it is read from a file, and as clients' keys are read
	if key == "" && cfg.APIKey != "" {
		return nil, errors.New("server: the API key is blank")
	}
	cfg.APIKey = key
	orInt := func(v *int64, d int64) {
		if *v <= 0 {
			*v = d
		}
	}
	orTime := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	orInt(&cfg.MaxBody, 10<<20)
	orInt(&cfg.MaxBodies, 256<<20)
	cfg.MaxBodies = max(cfg.MaxBodies, cfg.MaxBody)
	orTime(&cfg.BodyTimeout, time.Minute)
	orTime(&cfg.WriteTimeout, 30*time.Second)
	orTime(&cfg.HeaderDelay, time.Second)
	if cfg.MaxRequests <= 0 {
		cfg.MaxRequests = 1024
	}
	s := &Server{
		cfg: cfg, models: cfg.Generators, byID: map[string]Generator{}, fingerprints: map[string]string{}, log: cfg.Log, started: time.Now(),
		keyHash: sha256.Sum256([]byte(cfg.APIKey)), idle: make(chan struct{}),
		preparing: make(chan struct{}, 2),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.stop, s.stopAll = context.WithCancel(context.Background())
	for _, g := range cfg.Generators {
		id := g.Model().ID
		if id == "" || !utf8.ValidString(id) || s.byID[id] != nil {
			return nil, fmt.Errorf("server: model id %q is empty, not UTF-8, or served twice", id)
		}
		s.byID[id], s.fingerprints[id] = g, fingerprint(cfg.Version, g)
	}
	s.metrics = newMetrics(s)
	return s, nil
}

// Handler serves the public paths.
func (s *Server) Handler() http.Handler {
	table := routes{
		"/health":              {methods: "GET, HEAD", handle: s.health},
		"/health/live":         {methods: "GET, HEAD", handle: s.live},
		"/v1/models":           {methods: "GET, HEAD", key: true, handle: s.listModels},
		"/v1/models/":          {methods: "GET, HEAD", key: true, handle: s.getModel},
		"/v1/chat/completions": {methods: "POST", key: true, handle: s.chat},
		"/v1/completions":      {methods: "POST", key: true, handle: s.complete},
	}
	if !s.cfg.AdminSeparate {
		s.addAdmin(table)
	}
	return s.wrap(table)
}

// AdminHandler serves /metrics, /debug/vars and health, for a listener that only operators reach.
func (s *Server) AdminHandler() http.Handler {
	table := routes{
		"/health":      {methods: "GET, HEAD", handle: s.health},
		"/health/live": {methods: "GET, HEAD", handle: s.live},
	}
	s.addAdmin(table)
	return s.wrap(table)
}

func (s *Server) addAdmin(table routes) {
	table["/metrics"] = route{methods: "GET, HEAD", handle: s.metrics.serve}
	table["/debug/vars"] = route{methods: "GET, HEAD", handle: s.debugVars}
}

// HTTPServer returns an http.Server for h with the limits that bodies and writes don't set themselves: 10 s and 64 KiB for request
// headers, and idle connections kept for 5 minutes, longer than clients keep theirs, so that it is the client who closes.
func (s *Server) HTTPServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       5 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
}

func fingerprint(version string, g Generator) string {
	st := g.Stats()
	sum := sha256.Sum256([]byte(version + "\x00" + g.Model().ID + "\x00" + st.Backend + "\x00" + st.Device))
	return "fp_" + hex.EncodeToString(sum[:5])
}

func stack() string { return string(debug.Stack()) }
