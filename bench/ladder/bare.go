package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cotenant/internal/loadgen"
)

// yardstick is the rate of a client that does the least: net/http, encoding/json, and no row.
func yardstick(o options, bins binaries, mode string) (float64, error) {
	null, url, err := endpoint(bins.null, mode)
	if err != nil {
		return 0, err
	}
	defer stop(null)
	w, err := loadgen.New(loadgen.Options{Seed: 1})
	if err != nil {
		return 0, err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: int(o.workers)}}
	var answers atomic.Int64
	var failed atomic.Pointer[error]
	var workers sync.WaitGroup
	began := time.Now()
	for n := range o.workers {
		workers.Go(func() {
			for c := n; time.Since(began) < o.bare && failed.Load() == nil; c += o.workers {
				if err := ask(client, url, w.Task(c)); err != nil {
					failed.Store(&err)
					return
				}
				answers.Add(1)
			}
		})
	}
	workers.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(answers.Load()) / time.Since(began).Seconds(), nil
}

func ask(client *http.Client, url string, task loadgen.Task) error {
	body, err := json.Marshal(map[string]any{"model": "null", "messages": task.Messages, "stream": true, "max_tokens": 8,
		"stream_options": map[string]bool{"include_usage": true}})
	if err != nil {
		return err
	}
	resp, err := client.Post(url+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var text strings.Builder
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok || string(data) == "[DONE]" {
			continue
		}
		var chunk struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if err := json.Unmarshal(data, &chunk); err != nil {
			return err
		}
		for _, c := range chunk.Choices {
			text.WriteString(c.Delta.Content)
		}
	}
	if !task.Check(text.String()) {
		return errors.New("a wrong answer: " + text.String())
	}
	return nil
}
