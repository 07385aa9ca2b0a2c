//go:build linux

package enginetest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"cotenant/internal/testenv"
)

// Rootfs returns a tar of a minimal Debian system, made by debootstrap at first use and kept in the user's cache folder.
func Rootfs(t testing.TB) string {
	t.Helper()
	testenv.Need(t, "debootstrap", "apt install debootstrap: it makes the image that tests run")
	path, err := rootfs()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

const suite = "bookworm"

var rootfs = sync.OnceValues(func() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "cotenant", "rootfs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, suite+"-"+runtime.GOARCH+".tar")
	// Several test programs may want it at once.
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	work, err := os.MkdirTemp(dir, "work-")
	if err != nil {
		return "", err
	}
	defer removeAll(work)
	root := filepath.Join(work, "root")
	if out, err := exec.Command("debootstrap", "--variant=minbase", suite, root).CombinedOutput(); err != nil {
		return "", fmt.Errorf("debootstrap: %w\n%s", err, out[max(0, len(out)-2000):])
	}
	part := path + ".part"
	args := []string{"--numeric-owner", "-C", root, "-cf", part}
	for _, x := range []string{"./var/cache/apt", "./var/lib/apt/lists", "./usr/share/doc", "./usr/share/man", "./usr/share/locale", "./usr/share/info", "./dev", "./proc", "./sys"} {
		args = append(args, "--exclude="+x+"/*")
	}
	if out, err := exec.Command("tar", append(args, ".")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("tar: %w\n%s", err, out)
	}
	return path, os.Rename(part, path)
})

// Registry is a running registry on loopback.
type Registry struct {
	Address string // 127.0.0.1:port

	root string
	stop func()
	once sync.Once
}

// StartRegistry starts a registry. Stop it in any case.
func StartRegistry(t testing.TB) *Registry {
	t.Helper()
	testenv.Need(t, "docker-registry", "apt install docker-registry: it serves the image that tests run")
	r, err := startRegistry()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func startRegistry() (*Registry, error) {
	removeStale()
	root, err := folder("cotenant-r")
	if err != nil {
		return nil, err
	}
	r := &Registry{root: root, stop: func() {}}
	// Between the choice of a port and the registry's own listening another program may take it.
	for range 5 {
		if err = r.start(); err == nil {
			return r, nil
		}
	}
	r.Stop()
	return nil, err
}

// start starts the registry on a port that was free a moment ago, and returns when it answers.
func (r *Registry) start() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	r.Address = l.Addr().String()
	l.Close()
	config := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %s}\n", filepath.Join(r.root, "data"), r.Address)
	file := filepath.Join(r.root, "config.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return err
	}
	cmd := exec.Command("docker-registry", "serve", file)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "OTEL_TRACES_EXPORTER=none"}
	ended, err := background(cmd)
	if err != nil {
		return err
	}
	r.stop = func() { _ = cmd.Process.Kill(); <-ended }
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if resp, err := http.Get("http://" + r.Address + "/v2/"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK && resp.Header.Get("Docker-Distribution-Api-Version") != "" {
				return nil
			}
		}
		select {
		case <-ended:
			return errors.New("docker-registry ended")
		default:
		}
		if time.Now().After(deadline) {
			r.stop()
			return errors.New("docker-registry doesn't answer")
		}
	}
}

// Stop ends the registry and removes what it holds.
func (r *Registry) Stop() {
	r.once.Do(func() {
		r.stop()
		removeAll(r.root)
	})
}

// Config is what of an image's configuration a test may want to set.
type Config struct {
	Env     []string
	Volumes map[string]struct{} `json:",omitempty"`
}

// Push pushes an image of layers, each a tar, and returns its name and the digest of its manifest.
func (r *Registry) Push(t testing.TB, name string, config Config, layers ...string) (image, digest string) {
	t.Helper()
	digest, err := r.push(name, config, layers)
	if err != nil {
		t.Fatal(err)
	}
	return r.Address + "/" + name, digest
}

type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

func (r *Registry) push(name string, config Config, layers []string) (string, error) {
	var descriptors []descriptor
	var ids []string
	for _, path := range layers {
		d, err := r.blob(name, path)
		if err != nil {
			return "", err
		}
		d.MediaType = "application/vnd.oci.image.layer.v1.tar"
		descriptors, ids = append(descriptors, d), append(ids, d.Digest)
	}
	b, err := json.Marshal(map[string]any{"architecture": runtime.GOARCH, "os": "linux", "config": config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": ids}})
	if err != nil {
		return "", err
	}
	file := filepath.Join(r.root, "config.json")
	if err := os.WriteFile(file, b, 0o644); err != nil {
		return "", err
	}
	c, err := r.blob(name, file)
	if err != nil {
		return "", err
	}
	c.MediaType = "application/vnd.oci.image.config.v1+json"
	const manifestType = "application/vnd.oci.image.manifest.v1+json"
	manifest, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": manifestType, "config": c, "layers": descriptors})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(manifest)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	return digest, r.put("http://"+r.Address+"/v2/"+name+"/manifests/"+digest, manifestType, int64(len(manifest)), bytes.NewReader(manifest))
}

// blob uploads a file: https://github.com/opencontainers/distribution-spec, "Pushing a blob monolithically".
func (r *Registry) blob(name, path string) (descriptor, error) {
	f, err := os.Open(path)
	if err != nil {
		return descriptor{}, err
	}
	defer f.Close()
	h := sha256.New()
	size, err := io.Copy(h, f)
	if err != nil {
		return descriptor{}, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return descriptor{}, err
	}
	d := descriptor{Digest: "sha256:" + hex.EncodeToString(h.Sum(nil)), Size: size}
	resp, err := http.Post("http://"+r.Address+"/v2/"+name+"/blobs/uploads/", "", nil)
	if err != nil {
		return d, err
	}
	resp.Body.Close()
	location, err := resp.Location()
	if err != nil {
		return d, fmt.Errorf("beginning an upload: %s: %w", resp.Status, err)
	}
	query := location.Query()
	query.Set("digest", d.Digest)
	location.RawQuery = query.Encode()
	return d, r.put(location.String(), "application/octet-stream", size, f)
}

func (r *Registry) put(target, kind string, size int64, body io.Reader) error {
	req, err := http.NewRequest(http.MethodPut, target, body)
	if err != nil {
		return err
	}
	req.ContentLength = size
	req.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 2000))
		return fmt.Errorf("pushing to %s: %s: %s", (&url.URL{Path: req.URL.Path}).Path, resp.Status, b)
	}
	return nil
}

// Layer writes a tar of files, by their paths in the image, all of them readable and executable by everybody.
func Layer(t testing.TB, files map[string][]byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "layer.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		h := &tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name])), Typeflag: tar.TypeReg}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}
