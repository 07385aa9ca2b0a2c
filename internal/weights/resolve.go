package weights

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// repoName is a Hugging Face repository: organisation and name (huggingface_hub, validate_repo_id).
var repoName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}$`)

// revisionName is a commit as refs/main holds it.
var revisionName = regexp.MustCompile(`^[0-9a-f]{7,64}$`)

// Resolve turns what a user calls a model into a path for Open: a path that exists is returned as it is; org/name is looked
// up in the local Hugging Face cache, at the revision that its main branch had when it was downloaded. It never uses the
// network.
func Resolve(nameOrPath string) (string, error) {
	if nameOrPath == "" {
		return "", errors.New("find model: the name is empty")
	}
	if _, err := os.Stat(nameOrPath); err == nil {
		return nameOrPath, nil
	} else if !errors.Is(err, os.ErrNotExist) || !repoName.MatchString(nameOrPath) {
		return "", fmt.Errorf("find model: %w (give a GGUF file, a .safetensors file, a folder, or a repository name org/name from the local Hugging Face cache)", err)
	}
	hub, err := hubCache()
	if err != nil {
		return "", fmt.Errorf("find model %s: %w", nameOrPath, err)
	}
	dir, err := snapshot(hub, nameOrPath)
	if err != nil {
		return "", fmt.Errorf("find model %s: %w; nothing is downloaded here: run `hf download %s`, or give a path", nameOrPath, err, nameOrPath)
	}
	return dir, nil
}

// hubCache returns the folder that huggingface_hub (constants.py) keeps repositories in: the first variable that is set
// decides.
func hubCache() (string, error) {
	for _, v := range []struct{ name, rest string }{
		{"HF_HUB_CACHE", ""}, {"HUGGINGFACE_HUB_CACHE", ""}, {"HF_HOME", "hub"}, {"XDG_CACHE_HOME", "huggingface/hub"},
	} {
		if dir := os.Getenv(v.name); dir != "" {
			dir, err := expandHome(dir)
			if err != nil {
				return "", err
			}
			return filepath.Join(dir, filepath.FromSlash(v.rest)), nil
		}
	}
	return expandHome(filepath.FromSlash("~/.cache/huggingface/hub"))
}

func expandHome(dir string) (string, error) {
	if dir != "~" && !strings.HasPrefix(dir, "~"+string(filepath.Separator)) {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("expand %s: %w", dir, err)
	}
	return filepath.Join(home, dir[1:]), nil
}

// snapshot finds a repository's files: hub/models--org--name/refs/main names the folder under snapshots. Where the branch
// isn't recorded (a download of a given commit), the only snapshot is meant.
func snapshot(hub, repo string) (string, error) {
	root := filepath.Join(hub, "models--"+strings.ReplaceAll(repo, "/", "--"))
	if _, err := os.Stat(root); errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("no file or folder of that name, and no such repository in the Hugging Face cache %s", hub)
	}
	ref, err := readCapped(filepath.Join(root, "refs", "main"), 1<<10)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return onlySnapshot(root)
	case err != nil:
		return "", fmt.Errorf("read refs/main in %s: %w", root, err)
	}
	revision := strings.TrimSpace(string(ref))
	if !revisionName.MatchString(revision) {
		return "", fmt.Errorf("refs/main in %s holds %s, not a commit", root, quote(revision))
	}
	dir := filepath.Join(root, "snapshots", revision)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", fmt.Errorf("its main revision %s is not in %s", revision, filepath.Dir(dir))
	}
	return dir, nil
}

func onlySnapshot(root string) (string, error) {
	dirs, err := os.ReadDir(filepath.Join(root, "snapshots"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if len(dirs) != 1 {
		return "", fmt.Errorf("%s has no refs/main and %d snapshots", root, len(dirs))
	}
	return filepath.Join(root, "snapshots", dirs[0].Name()), nil
}
