package model

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cotenant/internal/backend/cpu"
	"cotenant/internal/weights"
)

// metaFromJSON turns a JSON object into GGUF metadata: whole numbers are integers, others FLOAT32.
func metaFromJSON(data []byte) (fakeMeta, error) {
	var doc map[string]any
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.UseNumber()
	if err := dec.Decode(&doc); err != nil {
		return nil, err
	}
	m := fakeMeta{}
	for k, v := range doc {
		switch v := v.(type) {
		case json.Number:
			if n, err := v.Int64(); err == nil {
				m[k] = int(n)
			} else if f, err := v.Float64(); err == nil {
				m[k] = float32(f)
			}
		case []any:
			list := []int{}
			for _, e := range v {
				if n, ok := e.(json.Number); ok {
					i, _ := n.Int64()
					list = append(list, int(i))
				}
			}
			m[k] = list
		default:
			m[k] = v
		}
	}
	return m, nil
}

// parseAny reads data as config.json or, where it has GGUF's keys, as metadata.
func parseAny(data []byte) (Config, hints, error) {
	if !strings.Contains(string(data), "general.architecture") {
		return parseHF(data)
	}
	m, err := metaFromJSON(data)
	if err != nil {
		return Config{}, hints{}, err
	}
	return parseGGUF(m, 1000)
}

// TestHostileConfigs: every file of the corpus is refused.
func TestHostileConfigs(t *testing.T) {
	files, err := filepath.Glob("testdata/hostile/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no corpus: %v", err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		c, h, err := parseAny(data)
		if err == nil {
			c.QKVBias = c.Arch == ArchQwen2
			err = c.Validate()
		}
		if err == nil {
			_, err = mergeEOS(c.VocabSize, h.eos)
		}
		if err == nil {
			t.Errorf("%s was accepted: %+v", f, c)
		} else if len(err.Error()) > 1000 {
			t.Errorf("%s: a message of %d bytes", f, len(err.Error()))
		}
	}
}

// FuzzConfig: no bytes make parsing panic, and what Validate passes has finite frequencies and sizes that don't overflow.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(hfBase))
	meta, err := json.Marshal(ggufBase())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(meta)
	for _, pattern := range []string{"testdata/hostile/*.json", "testdata/random/*/config.json"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatalf("no files %s: %v", pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, h, err := parseAny(data)
		if err != nil {
			return
		}
		s := &source{Config: c, names: &hfNames, tensors: &altered{File: &weights.File{}}}
		if s.settle(h) != nil || s.Validate() != nil {
			return
		}
		if n := s.Parameters(); n < 1 || n > 1<<50 {
			t.Fatalf("%d parameters of %+v", n, s.Config)
		}
		table := s.RoPE.tables(3)
		for i := range table.Cos {
			if c, s := float64(table.Cos[i]), float64(table.Sin[i]); !(math.Abs(c*c+s*s-1) < 1e-5) {
				t.Fatalf("cos %g, sin %g", c, s)
			}
		}
		if _, err := mergeEOS(s.VocabSize, h.eos); err != nil {
			return
		}
	})
}

// TestMutatedGGUF loads a small model with bytes of its header changed: an error or a model, never a panic.
func TestMutatedGGUF(t *testing.T) {
	good, err := os.ReadFile("testdata/random/llama3-bias.gguf")
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	loaded, rounds := 0, 400
	if raceEnabled {
		rounds = 100
	}
	for range rounds {
		data := append([]byte(nil), good...)
		for range 1 + rng.IntN(3) {
			at := rng.IntN(12 << 10) // metadata and descriptions of tensors
			if rng.IntN(2) == 0 {
				at = rng.IntN(1 << 10) // the keys of the architecture
			}
			data[at] = byte(rng.Uint32())
		}
		f, err := weights.FromBytes("mutated.gguf", data)
		if err != nil {
			continue
		}
		be, err := cpu.New(cpu.Options{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		m, err := fromFile(f, be, Options{MaxBatchTokens: 4, OutputChunk: 1})
		if err != nil {
			_ = be.Close()
			continue
		}
		loaded++
		newRunner(t, m, 4, 2).all([]int32{1, 2, 3}, 2)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if loaded == 0 || loaded == rounds {
		t.Errorf("%d of %d mutated files were loaded: the mutations test nothing", loaded, rounds)
	}
	t.Logf("%d of %d mutated files were loaded", loaded, rounds)
}
