package container

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"
)

//go:embed default.yaml
var defaultFile []byte

const (
	// DefaultService is the service that is run unless another is named.
	DefaultService = "probe"
	// Profile is the one that the service must be in, and no other: `docker compose up` alone never starts it.
	Profile = "probe"

	defaultProject = "cotenant-probe"
	// maxFile bounds a Compose file, in bytes. One service takes about two thousand.
	maxFile = 256 << 10
)

// Variables of a Compose file: the program sets them, and a file may name no others.
const (
	varImage    = "COTENANT_IMAGE"
	varPlatform = "COTENANT_PLATFORM"
	varBinary   = "COTENANT_BINARY"
	varCommand  = "COTENANT_COMMAND"
	varUUID     = "COTENANT_GPU_UUID"
	varDeadline = "COTENANT_DEADLINE"
	varRun      = "COTENANT_RUN"
)

// model is one service as the Compose file has it, after interpolation.
type model struct {
	project string
	name    string // of the service
	service types.ServiceConfig
	// unknown are the paths of settings in the file that no rule knows.
	unknown []string
	// includes says that the file includes others, which aren't read.
	includes bool
}

// container is the name that the container gets.
func (m *model) container() string {
	if m.service.ContainerName != "" {
		return m.service.ContainerName
	}
	return m.project + "-" + m.name + "-1"
}

// readFile reads a Compose file, or the embedded one where path is empty.
func readFile(path string) (content []byte, err error) {
	if path == "" {
		return defaultFile, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("reading the Compose file: %w", err)
	}
	if info.Size() > maxFile || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("reading the Compose file %s: want a file of at most %d bytes", path, maxFile)
	}
	if content, err = os.ReadFile(path); err != nil {
		return nil, fmt.Errorf("reading the Compose file: %w", err)
	}
	return content, nil
}

// load reads one service of a Compose file. It reads no other file: neither env_file nor include nor extends, which the audit then
// refuses, and takes nothing from the environment.
func load(content []byte, path, service string, variables map[string]string) (m *model, err error) {
	if len(content) > maxFile {
		return nil, fmt.Errorf("the Compose file has %d bytes, more than %d", len(content), maxFile)
	}
	// The loader asserts types that its schema should have checked; a file that gets past that is a bad file.
	defer func() {
		if r := recover(); r != nil {
			m, err = nil, fmt.Errorf("reading the Compose file: the loader failed: %v", r)
		}
	}()
	if err := checkAliases(content); err != nil {
		return nil, fmt.Errorf("reading the Compose file: %w", err)
	}
	folder, name := ".", "compose.yaml"
	if path != "" {
		folder, name = filepath.Dir(path), filepath.Base(path)
	}
	if folder, err = filepath.Abs(folder); err != nil {
		return nil, fmt.Errorf("reading the Compose file: %w", err)
	}
	var unknown []string
	details := func() types.ConfigDetails {
		return types.ConfigDetails{WorkingDir: folder, Environment: types.Mapping(maps.Clone(variables)),
			ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(folder, name), Content: content}}}
	}
	options := func(o *loader.Options) {
		o.SkipExtends, o.SkipInclude, o.SkipResolveEnvironment, o.SkipResolveLabels = true, true, true, true
		o.SkipConsistencyCheck = true // it is about other services too
		o.SetProjectName(defaultProject, false)
		o.Profiles = []string{"*"}
		o.Interpolate.Substitute = func(text string, _ template.Mapping) (string, error) {
			return template.Substitute(text, func(key string) (string, bool) {
				value, ok := variables[key]
				if !ok && !slices.Contains(unknown, key) {
					unknown = append(unknown, key)
				}
				return value, true
			})
		}
	}
	dict, err := loader.LoadModelWithContext(context.Background(), details(), options)
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, fmt.Errorf("the Compose file names %s: only %s are set, and nothing is taken from the environment",
			strings.Join(unknown, ", "), strings.Join(slices.Sorted(maps.Keys(variables)), ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("reading the Compose file: %w", err)
	}
	m = &model{project: defaultProject, name: service}
	if n, ok := dict["name"].(string); ok && n != "" {
		m.project = n
	}
	_, m.includes = dict["include"]
	services, _ := dict["services"].(map[string]any)
	settings, ok := services[service].(map[string]any)
	if !ok {
		return nil, errors.New("the Compose file has no service " + service + "; it has " + strings.Join(slices.Sorted(maps.Keys(services)), ", "))
	}
	m.unknown = leaves(settings) // before the loader goes on with the mapping
	d := details()
	project, err := loader.ModelToProject(dict, loader.ToOptions(&d, []func(*loader.Options){options}), d)
	if err != nil {
		return nil, fmt.Errorf("reading the Compose file: %w", err)
	}
	if m.service, err = project.GetService(service); err != nil {
		return nil, fmt.Errorf("reading the Compose file: %w", err)
	}
	return m, nil
}
