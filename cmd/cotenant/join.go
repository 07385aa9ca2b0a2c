package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"cotenant/internal/backend"
	"cotenant/internal/backend/cpu"
	"cotenant/internal/backend/cuda"
	"cotenant/internal/embedded"
	"cotenant/internal/engine"
	"cotenant/internal/model"
)

// modelOptions say which model to serve, and on what.
type modelOptions struct {
	Model      string // path or name as weights.Resolve takes it; empty: the embedded one
	ServedName string // empty: the model's own
	Backend    string // auto, cpu, cuda
	GPU        string // UUID, for cuda; empty: the first
	Context    int    // tokens; 0: what the model and the KV memory allow
	MaxSeqs    int    // 0: the engine's default
	KVMemory   int64  // bytes; 0: the engine's default
	Threads    int    // 0: all cores
	Log        *slog.Logger
}

// What CUDA's engine takes where nothing is said: enough to keep a large GPU busy.
const (
	cudaSeqs        = 256
	cudaBatchTokens = 4096
)

// openEngine loads a model and starts an engine on it.
func openEngine(o modelOptions) (*engine.Engine, error) {
	id := o.ServedName
	if id == "" {
		id = servedName(o.Model)
	}
	cfg := engine.Config{ID: id, MaxSeqs: o.MaxSeqs, KVMemory: o.KVMemory, ContextLength: o.Context, Log: o.Log}
	open := func() (backend.Backend, error) { return cpu.New(cpu.Options{Threads: o.Threads}) }
	var opt model.Options
	if o.Backend == "cuda" {
		if cfg.MaxSeqs == 0 {
			cfg.MaxSeqs = cudaSeqs
		}
		cfg.MaxBatchTokens = max(cudaBatchTokens, cfg.MaxSeqs)
		opt = model.Options{MaxBatchTokens: cfg.MaxBatchTokens, OutputChunk: cfg.MaxSeqs}
		open = func() (backend.Backend, error) {
			return cuda.New(cuda.Options{GPU: o.GPU, Rows: cfg.MaxSeqs, Log: o.Log})
		}
	}
	return engine.New(cfg, func() (engine.Runtime, error) {
		be, err := open()
		if err != nil {
			return engine.Runtime{}, fmt.Errorf("starting the backend: %w", err)
		}
		rt, err := openRuntime(o.Model, be, opt)
		if err != nil {
			return engine.Runtime{}, errors.Join(err, be.Close())
		}
		return rt, nil
	})
}

// servedName is a model's name where none is given: the embedded one's, a file's or folder's, and else the repository's.
func servedName(path string) string {
	if path == "" {
		return embedded.Name
	}
	if _, err := os.Stat(path); err != nil {
		return path
	}
	if whole, err := filepath.Abs(path); err == nil {
		path = whole
	}
	name := filepath.Base(path)
	for _, ending := range []string{".gguf", ".safetensors"} {
		name = strings.TrimSuffix(name, ending)
	}
	if name == string(filepath.Separator) || name == "" {
		return "model"
	}
	return name
}

func openRuntime(path string, be backend.Backend, opt model.Options) (engine.Runtime, error) {
	var m *model.Model
	var err error
	if path == "" {
		m, err = model.LoadEmbedded(be, opt)
	} else {
		m, err = model.Load(path, be, opt)
	}
	if err != nil {
		return engine.Runtime{}, err
	}
	return engine.FromModel(m, be), nil
}
