package weights

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// maxShards bounds the files of one model. Published checkpoints have up to about 200.
const maxShards = 4096

// maxIndex bounds model.safetensors.index.json, in bytes. One of 92,000 tensors has 9 MB.
const maxIndex = 32 << 20

// openShards opens the model of model.safetensors.index.json: {"metadata": …, "weight_map": {tensor: file}}. Every tensor of
// the map must be in its file; tensors that the map doesn't know are taken too, unless two files have one of that name.
func openShards(dir string) (_ *File, err error) {
	text, err := readCapped(filepath.Join(dir, indexName), maxIndex)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", indexName, err)
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("%s: %w", indexName, err)
	}
	shards, err := shardNames(index.WeightMap)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", indexName, err)
	}

	var tensors []Tensor
	var maps []*mapping
	defer func() {
		if err != nil {
			for _, m := range maps {
				err = errors.Join(err, m.close())
			}
		}
	}()
	home := make(map[string]string, len(index.WeightMap)) // tensor to the shard that has it
	var meta metadata
	for _, shard := range shards {
		f, err := openFile(filepath.Join(dir, shard))
		if err != nil {
			return nil, fmt.Errorf("shard %s: %w", shard, err)
		}
		maps = append(maps, f.maps...)
		if f.format != Safetensors {
			return nil, fmt.Errorf("shard %s is not safetensors", shard)
		}
		if meta.values == nil {
			meta = f.meta // shards repeat it
		}
		for _, t := range f.tensors {
			if first, twice := home[t.Name]; twice {
				return nil, fmt.Errorf("tensor %s is in shards %s and %s", quote(t.Name), first, shard)
			}
			home[t.Name] = shard
		}
		if tensors = append(tensors, f.tensors...); len(tensors) > maxTensors {
			return nil, fmt.Errorf("more than %d tensors", maxTensors)
		}
	}
	for name, shard := range index.WeightMap {
		if home[name] != shard {
			return nil, fmt.Errorf("%s places tensor %s in %s, which doesn't have it", indexName, quote(name), shard)
		}
	}
	f, err := newFile(Safetensors, tensors, meta)
	if err != nil {
		return nil, err
	}
	f.path, f.maps, f.sidecar = dir, maps, dir
	return f, nil
}

// shardNames returns the files of a weight map, sorted. They must be plain names: an index must not reach other folders.
func shardNames(weightMap map[string]string) ([]string, error) {
	if len(weightMap) == 0 {
		return nil, errors.New("has no weight_map")
	}
	seen := map[string]bool{}
	var names []string
	for tensor, name := range weightMap {
		if seen[name] {
			continue
		}
		if !plainName(name) {
			return nil, fmt.Errorf("tensor %s is placed in %s, which is not a plain file name", quote(tensor), quote(name))
		}
		if len(names) == maxShards {
			return nil, fmt.Errorf("more than %d shards", maxShards)
		}
		seen[name] = true
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}
