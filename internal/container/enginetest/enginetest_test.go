//go:build linux

package enginetest

import (
	"archive/tar"
	"io"
	"net/http"
	"os"
	"path"
	"strings"
	"testing"
)

// The image has glibc and its loader, and no device.
func TestRootfs(t *testing.T) {
	f, err := os.Open(Rootfs(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	found := make(map[string]bool)
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeBlock || h.Typeflag == tar.TypeChar {
			t.Errorf("%s is a device", h.Name)
		}
		switch base := path.Base(h.Name); {
		case base == "libc.so.6":
			found["libc"] = true
		case strings.HasPrefix(base, "ld-linux"):
			found["loader"] = true
		}
	}
	if len(found) < 2 {
		t.Errorf("no C library or no loader: %v", found)
	}
}

// A registry serves what was pushed by its digest, and nothing else.
func TestPush(t *testing.T) {
	r := StartRegistry(t)
	defer r.Stop()
	image, digest := r.Push(t, "x", Config{}, Layer(t, map[string][]byte{"etc/motd": []byte("hello")}))
	if image != r.Address+"/x" {
		t.Errorf("image %s", image)
	}
	for want, code := range map[string]int{digest: http.StatusOK, "sha256:" + strings.Repeat("0", 64): http.StatusNotFound} {
		req, _ := http.NewRequest(http.MethodGet, "http://"+r.Address+"/v2/x/manifests/"+want, nil)
		req.Header.Set("Accept", "application/vnd.oci.image.manifest.v1+json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != code {
			t.Errorf("%s: %s", want, resp.Status)
		}
	}
}
