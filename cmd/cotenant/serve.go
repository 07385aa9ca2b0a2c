package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cotenant/internal/engine"
	"cotenant/internal/server"
)

// drainGrace is how long running requests may take after SIGTERM before they are cut.
const drainGrace = 30 * time.Second

type serveOptions struct {
	model       modelOptions
	kvMemory    string
	listen      string
	adminListen string
	keyFile     string
	asJSON      bool
}

func newServe() *cobra.Command {
	var o serveOptions
	c := &cobra.Command{
		Use:   "serve",
		Short: "Serve a model over OpenAI's API",
		Long: "Serves a model over OpenAI's HTTP API: /v1/models, /v1/chat/completions, /v1/completions, /health, and /metrics and /debug/vars.\n" +
			"Without --model it is the embedded one, which answers what `cotenant soak` asks and little else.\n" +
			"An address other than loopback demands an API key (--api-key-file or COTENANT_API_KEY), and then /metrics and /debug/vars are\n" +
			"on --admin-listen alone. SIGTERM or SIGINT drains: what runs may finish within 30 s; a SIGINT after it stops at once.",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return serve(c, o) },
	}
	f := c.Flags()
	f.StringVar(&o.model.Model, "model", "", "GGUF or safetensors file, folder, or repository in the local Hugging Face cache (default: the embedded model)")
	f.StringVar(&o.model.ServedName, "served-name", "", "model id that clients use (default: the file's, folder's or repository's name)")
	f.StringVar(&o.listen, "listen", "127.0.0.1:8080", "address of the API")
	f.StringVar(&o.adminListen, "admin-listen", "", "address for /metrics and /debug/vars (default: on --listen where that is loopback, else nowhere)")
	f.StringVar(&o.model.Backend, "backend", "cpu", "cpu or cuda")
	f.StringVar(&o.model.GPU, "gpu-uuid", "", "GPU of --backend cuda (default: the first)")
	f.IntVar(&o.model.Context, "ctx", 0, "most tokens of prompt and answer together (default: what the model and --kv-memory allow)")
	f.IntVar(&o.model.MaxSeqs, "max-seqs", 0, "sequences computed at once (default 8, with cuda 256)")
	f.StringVar(&o.kvMemory, "kv-memory", "", "memory for keys and values, bytes or with KiB, MiB, GiB (default: 256MiB, with cuda what the GPU has free)")
	f.IntVar(&o.model.Threads, "threads", 0, "CPU threads (default: all)")
	f.StringVar(&o.keyFile, "api-key-file", "", "file with the API key that clients must send")
	f.BoolVar(&o.asJSON, "json", false, "print one JSON line with the address once ready")
	return describe(c, "listens", "0  drained", "1  could not start, or a device error was latched")
}

func serve(c *cobra.Command, o serveOptions) error {
	key, loopback, err := o.check(c)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
	o.model.Log = log
	// The addresses first: a port that is taken is known before a model is loaded.
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return &exit{exitFailed, fmt.Errorf("listening: %w", err), "is another server running there? --listen takes another address"}
	}
	defer listener.Close()
	var admin net.Listener
	if o.adminListen != "" {
		if admin, err = net.Listen("tcp", o.adminListen); err != nil {
			return &exit{exitFailed, fmt.Errorf("listening for metrics: %w", err), "--admin-listen takes another address"}
		}
		defer admin.Close()
	}
	began := time.Now()
	e, err := openEngine(o.model)
	if err != nil {
		return err
	}
	defer e.Close()
	s, err := server.New(server.Config{Generators: []server.Generator{e}, APIKey: key, Version: version(), AdminSeparate: !loopback, Log: log})
	if err != nil {
		return err
	}
	stats := e.Stats()
	log.Info("ready", "model", e.Model().ID, "backend", stats.Backend, "device", stats.Device, "context", e.Model().ContextLength,
		"address", listener.Addr().String(), "step_weight_bytes", stats.StepWeightBytes, "load_ms", time.Since(began).Milliseconds())
	if o.asJSON {
		line := readyLine{1, "serve", "http://" + listener.Addr().String(), e.Model().ID, os.Getpid()}
		if err := json.NewEncoder(c.OutOrStdout()).Encode(line); err != nil {
			return err
		}
	}
	return runServer(c.Context(), s, e, listener, admin, log)
}

// check finds what is wrong with the options before anything happens. It returns the API key, and whether only this machine can
// reach the API.
func (o *serveOptions) check(c *cobra.Command) (key string, loopback bool, err error) {
	for flag, v := range map[string]string{"model": o.model.Model, "served-name": o.model.ServedName} {
		if v == "" && c.Flags().Changed(flag) {
			return "", false, usagef(c, "--%s is empty; leave it out for its default", flag)
		}
	}
	if c.Flags().Changed("kv-memory") {
		if o.model.KVMemory, err = parseBytes(o.kvMemory); err != nil {
			return "", false, usagef(c, "--kv-memory: %v", err)
		}
	}
	if !slices.Contains([]string{"cpu", "cuda"}, o.model.Backend) {
		return "", false, &exit{exitUsage, fmt.Errorf("unknown backend %q", o.model.Backend), "backends are cpu and cuda"}
	}
	if o.model.GPU != "" && o.model.Backend != "cuda" {
		return "", false, usagef(c, "--gpu-uuid is for --backend cuda")
	}
	if o.model.Context < 0 || o.model.MaxSeqs < 0 || o.model.Threads < 0 {
		return "", false, usagef(c, "--ctx, --max-seqs and --threads can't be negative")
	}
	if key, err = apiKey(o.keyFile); err != nil {
		return "", false, usageError(c, err)
	}
	if loopback, err = isLoopback(o.listen); err != nil {
		return "", false, usagef(c, "--listen %s: %v", o.listen, err)
	}
	if o.adminListen != "" {
		if _, err := isLoopback(o.adminListen); err != nil {
			return "", false, usagef(c, "--admin-listen %s: %v", o.adminListen, err)
		}
	}
	if !loopback && key == "" {
		return "", false, &exit{exitUsage, fmt.Errorf("--listen %s can be reached from other machines and no API key is set", o.listen),
			"give a key with --api-key-file or COTENANT_API_KEY, or listen on 127.0.0.1"}
	}
	return key, loopback, nil
}

// readyLine is what serve --json prints.
type readyLine struct {
	SchemaVersion int    `json:"schema_version"`
	Operation     string `json:"operation"`
	Endpoint      string `json:"endpoint"`
	Model         string `json:"model"`
	PID           int    `json:"pid"`
}

// runServer serves until ctx is cancelled or the engine's device is dead.
// admin is nil where nothing is to be served there.
func runServer(ctx context.Context, s *server.Server, e *engine.Engine, listener, admin net.Listener, log *slog.Logger) error {
	servers := []*http.Server{s.HTTPServer(s.Handler())}
	failed := make(chan error, 2)
	go func() { failed <- servers[0].Serve(listener) }()
	if admin != nil {
		servers = append(servers, s.HTTPServer(s.AdminHandler()))
		go func() { failed <- servers[1].Serve(admin) }()
	}
	var cause error
	select {
	case <-ctx.Done():
		log.Info("draining", "cause", context.Cause(ctx).Error(), "grace_s", int(drainGrace.Seconds()))
	case err := <-failed:
		cause = fmt.Errorf("serving: %w", err)
	case err := <-latched(ctx, e):
		cause = fmt.Errorf("device error: %w", err)
	}
	grace, cancel := context.WithTimeout(context.Background(), drainGrace)
	defer cancel()
	if err := s.Drain(grace); err != nil {
		log.Warn("cut", "error", err.Error())
	}
	last, stop := context.WithTimeout(context.Background(), 2*time.Second) // for answers' last bytes
	defer stop()
	for _, hs := range servers {
		if err := hs.Shutdown(last); err != nil {
			hs.Close()
		}
	}
	if cause != nil {
		return &exit{exitFailed, cause, ""}
	}
	return nil
}

// latched delivers the engine's device error, should there be one before ctx is done.
func latched(ctx context.Context, e *engine.Engine) <-chan error {
	c := make(chan error, 1)
	go func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if err := e.Health(); err != nil {
					c <- err
					return
				}
			}
		}
	}()
	return c
}

// apiKey reads the key from a file, else from COTENANT_API_KEY.
func apiKey(path string) (string, error) {
	key := os.Getenv("COTENANT_API_KEY")
	if path != "" {
		data, err := readKey(path)
		if err != nil {
			return "", fmt.Errorf("reading the API key: %w", err)
		}
		if key = strings.TrimSpace(string(data)); key == "" {
			return "", fmt.Errorf("reading the API key: %s is empty", path)
		}
	}
	if strings.ContainsAny(key, " \t\r\n") {
		return "", errors.New("the API key holds white space; want one line with the key alone")
	}
	return key, nil
}

// isLoopback reports whether only this machine can reach a listen address.
func isLoopback(address string) (bool, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false, errors.New("want host:port, for instance 127.0.0.1:8080")
	}
	if host == "localhost" {
		return true, nil
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback(), nil
}

// parseBytes reads a size: digits, or digits with KiB, MiB, GiB (K, M, G mean the same).
func parseBytes(s string) (int64, error) {
	text, shift := strings.TrimSuffix(strings.TrimSuffix(s, "B"), "i"), 0
	for i, unit := range []string{"K", "M", "G"} {
		if t, ok := strings.CutSuffix(text, unit); ok {
			text, shift = t, 10*(i+1)
			break
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n < 1 || n > 1<<53>>shift {
		return 0, fmt.Errorf("%q is not a size; want for instance 512MiB", s)
	}
	return n << shift, nil
}
