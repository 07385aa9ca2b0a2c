package container

import (
	"fmt"
	"slices"
	"sort"
	"strings"
)

// known are the settings of a service that a rule looks at, or that change nothing; all others are refused. Those with a value are
// settings of a mapping, and known below it are those listed.
var known = map[string][]string{
	"profiles": nil, "container_name": nil, "image": nil, "platform": nil, "entrypoint": nil, "command": nil, "environment": nil,
	"user": nil, "working_dir": nil, "read_only": nil, "tmpfs": nil, "volumes": nil, "network_mode": nil, "networks": nil,
	"cap_drop": nil, "cap_add": nil, "security_opt": nil, "restart": nil, "mem_limit": nil, "memswap_limit": nil, "pids_limit": nil,
	"privileged": nil, "ports": nil, "expose": nil, "pid": nil, "ipc": nil, "userns_mode": nil, "uts": nil, "cgroup": nil,
	"cgroup_parent": nil, "devices": nil, "device_cgroup_rules": nil, "gpus": nil, "runtime": nil, "group_add": nil,
	"logging": nil,
	"deploy":  {"resources.reservations.devices", "restart_policy"},
}

// harmless are settings that a file may hold with one value, the default that it would have anyhow.
var harmless = map[string]any{
	"stdin_open": false, "tty": false, "init": false, "oom_kill_disable": false, "pull_policy": "missing", "scale": 1,
}

// unreviewed refuses what no rule has looked at.
func (a *audit) unreviewed() {
	if a.m.includes {
		a.refuse("unreviewed_setting", "include", "set", "put the service into one file")
	}
	for _, path := range a.m.unknown {
		a.refuse("unreviewed_setting", path, "set", "")
	}
	if wd := a.m.service.WorkingDir; wd != tmpTarget {
		a.refuse("unreviewed_setting", "working_dir", wd, "want "+tmpTarget)
	}
}

// leaves are the paths of a service's settings that aren't known.
func leaves(settings map[string]any) []string {
	var found []string
	for key, value := range settings {
		if strings.HasPrefix(key, "x-") {
			continue // an extension: the engine never sees it
		}
		below, ok := known[key]
		if def, is := harmless[key]; !ok && is && fmt.Sprint(def) == fmt.Sprint(value) {
			continue
		}
		if !ok {
			found = append(found, key)
			continue
		}
		if below != nil {
			m, _ := value.(map[string]any)
			found = append(found, paths(key, "", m, below)...)
		}
	}
	sort.Strings(found)
	return found
}

// paths are those below a mapping that aren't listed.
func paths(root, prefix string, m map[string]any, listed []string) []string {
	var found []string
	for key, value := range m {
		path := key
		if prefix != "" {
			path = prefix + "." + key
		}
		if slices.Contains(listed, path) || strings.HasPrefix(key, "x-") {
			continue
		}
		deeper := slices.ContainsFunc(listed, func(l string) bool { return strings.HasPrefix(l, path+".") })
		if sub, ok := value.(map[string]any); ok && deeper {
			found = append(found, paths(root, path, sub, listed)...)
			continue
		}
		found = append(found, root+"."+path)
	}
	return found
}
