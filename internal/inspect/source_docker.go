package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"cotenant/internal/observe"
)

// maxAnswer bounds an answer of the engine, in bytes.
const maxAnswer = 4 << 20

// docker asks the engine behind the local socket with GET requests. It never connects to an address on a network, and not to
// a socket behind which systemd would start the engine.
func docker(ctx context.Context, t tree, os string, env []string, inContainer func() bool, timeout time.Duration) Docker {
	d := Docker{Runtimes: []string{}, CDIFolders: []string{}, Discovered: []string{}, SecurityOpt: []string{}}
	if os == "windows" {
		d.end(observe.BlockedByEnvironment, "the engine's named pipe on Windows is not asked")
		return d
	}
	socket, why := dockerSocket(t, env)
	if socket == "" {
		d.end(observe.Unavailable, why)
		return d
	}
	d.add(said(t.shown(socket), "socket exists"))
	if t.exists("/run/systemd/system") && !inContainer() && !running(t, "dockerd", "docker") {
		d.end(observe.Unavailable, "dockerd doesn't run; connecting to its socket would make systemd start it, so it was not asked")
		return d
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	var version struct{ Version, APIVersion string }
	if !d.get(ctx, client, "/version", &version) {
		return d
	}
	d.Version, d.APIVersion = observe.Clip(version.Version), observe.Clip(version.APIVersion)
	var info struct {
		OperatingSystem, DefaultRuntime string
		Runtimes                        map[string]json.RawMessage
		CDISpecDirs                     []string
		SecurityOptions                 []string
		DiscoveredDevices               []struct{ Source, ID string }
	}
	if !d.get(ctx, client, "/info", &info) {
		return d
	}
	d.OS, d.Default = observe.Clip(info.OperatingSystem), observe.Clip(info.DefaultRuntime)
	for name := range info.Runtimes {
		d.Runtimes = append(d.Runtimes, observe.Clip(name))
	}
	for _, dev := range info.DiscoveredDevices {
		d.Discovered = append(d.Discovered, observe.Clip(dev.ID))
	}
	d.CDIFolders, d.SecurityOpt = clipAll(info.CDISpecDirs), clipAll(info.SecurityOptions)
	for _, list := range [][]string{d.Runtimes, d.Discovered, d.CDIFolders, d.SecurityOpt} {
		slices.Sort(list)
	}
	d.add(said("GET /version", d.Version+" API "+d.APIVersion), said("GET /info", d.OS+"; runtimes "+strings.Join(d.Runtimes, " ")+"; default "+d.Default))
	d.end(observe.SupportedProven, "")
	return d
}

func clipAll(list []string) []string {
	clipped := make([]string, len(list))
	for i, s := range list {
		clipped[i] = observe.Clip(s)
	}
	return clipped
}

// get asks and decodes; a failure ends the source.
func (d *Docker) get(ctx context.Context, client *http.Client, path string, into any) bool {
	fail := func(err error) bool {
		status, reason := statusOf(err)
		if ctx.Err() != nil {
			status, reason = observe.Hung, "the engine did not answer GET "+path+" by the deadline"
		}
		d.add(said("GET "+path, reason))
		d.end(status, reason)
		return false
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker"+path, nil)
	if err != nil {
		return fail(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fail(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fail(err)
	}
	if resp.StatusCode != http.StatusOK {
		d.add(returned("GET "+path, int32(resp.StatusCode), string(data)))
		d.end(observe.Unknown, fmt.Sprintf("GET %s answered %s", path, resp.Status))
		return false
	}
	if err := json.Unmarshal(data, into); err != nil {
		d.add(returned("GET "+path, int32(resp.StatusCode), string(data)))
		d.end(observe.Unknown, "GET "+path+" answered no JSON that could be read")
		return false
	}
	return true
}

// dockerSocket finds the engine's socket: DOCKER_HOST where it names one, the usual places else.
func dockerSocket(t tree, env []string) (path, why string) {
	if host, ok := variable(env, "DOCKER_HOST"); ok && host != "" {
		p, ok := strings.CutPrefix(host, "unix://")
		if !ok {
			return "", "DOCKER_HOST names no local socket, and nothing on a network is asked"
		}
		if isSocket(p) {
			return p, ""
		}
		return "", "no socket where DOCKER_HOST says"
	}
	candidates := []string{t.path("/var/run/docker.sock"), t.path("/run/docker.sock")}
	if dir, ok := variable(env, "XDG_RUNTIME_DIR"); ok && dir != "" {
		candidates = append(candidates, dir+"/docker.sock")
	}
	if home, ok := variable(env, "HOME"); ok && home != "" {
		candidates = append(candidates, home+"/.docker/run/docker.sock")
	}
	for _, p := range candidates {
		if isSocket(p) {
			return p, ""
		}
	}
	return "", "no engine socket in the usual places"
}

func isSocket(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&fs.ModeSocket != 0
}

// running reports whether a process of one of these names exists.
func running(t tree, names ...string) bool {
	pids, err := t.names("/proc")
	if err != nil {
		return false
	}
	for _, pid := range pids {
		if pid[0] < '0' || pid[0] > '9' {
			continue
		}
		if slices.Contains(names, t.line("/proc/"+pid+"/comm")) {
			return true
		}
	}
	return false
}
