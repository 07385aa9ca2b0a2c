package container

import (
	"regexp"
	"runtime"

	"github.com/distribution/reference"
)

// Image is a reviewed image: one platform's, pinned by the digest of that platform's manifest. The digest of an index, which lists
// several platforms, isn't one: what it selects depends on the engine.
type Image struct {
	Name     string `json:"name"`     // repository with its registry: docker.io/library/debian
	Platform string `json:"platform"` // linux/amd64
	Digest   string `json:"digest"`   // sha256:… of the platform's manifest
	Why      string `json:"why"`
}

// Reference is how an engine is asked for the image.
func (i Image) Reference() string { return i.Name + "@" + i.Digest }

// The program finds the driver's libraries by glibc's loader, which an image from scratch lacks, and musl can't load them. It needs
// nothing else of an image: the engine's NVIDIA hook brings the driver, and the probe is this program. Digests are those that
// docker-library/repo-info lists for each platform (repos/debian/remote/bookworm-20260918-slim.md at 43a0ed1).
const whyDebian = "Debian 12 slim, debian:bookworm-20260918-slim: glibc 2.36, no entrypoint, no volumes, no variables but PATH"

var reviewed = []Image{
	{"docker.io/library/debian", "linux/amd64", "sha256:f3034a6ec3c1205360777c4aae76234998866ad18806ae62b63a3f84ccad782b", whyDebian},
	{"docker.io/library/debian", "linux/arm64", "sha256:0c8bbb8e987a035fe1d9704eb2e571b7e9a836e1caa46345290674b45b69e417", whyDebian},
}

// Reviewed returns the images that the audit accepts.
func Reviewed() []Image { return append([]Image(nil), reviewed...) }

// platform is the one that this program's binary runs on.
func platform() string { return "linux/" + runtime.GOARCH }

// defaultImage is the first reviewed image of this platform.
func defaultImage(images []Image) (Image, bool) {
	for _, i := range images {
		if i.Platform == platform() {
			return i, true
		}
	}
	return Image{}, false
}

var digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// parseImage splits a reference into its whole name and its digest; ok is false where it isn't NAME@sha256:… alone. A tag beside a
// digest says nothing that is checked, so it isn't accepted.
func parseImage(text string) (name, digest string, ok bool) {
	ref, err := reference.ParseNormalizedNamed(text)
	if err != nil {
		return "", "", false
	}
	if c, is := ref.(reference.Canonical); is {
		digest = c.Digest().String()
	}
	_, tagged := ref.(reference.Tagged)
	return ref.Name(), digest, !tagged && digestPattern.MatchString(digest)
}

// hintOf says what is wrong with an image that many would try.
func hintOf(name string) string {
	switch name {
	case "docker.io/library/alpine":
		return "its C library is musl, which can't load NVIDIA's driver"
	case "docker.io/library/busybox":
		return "most of its variants have no glibc, which loading NVIDIA's driver needs"
	case "docker.io/library/scratch":
		return "it is empty: loading NVIDIA's driver needs glibc"
	case "docker.io/nvidia/cuda":
		return "no toolkit is needed: the probe is this program"
	}
	return ""
}
