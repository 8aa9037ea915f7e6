package packages

import (
	"archive/tar"
	"compress/gzip"
	"debug/buildinfo"
	"debug/elf"
	"debug/macho"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestChecksums_AreOfEveryFile: SHA256SUMS lists what is released, and sha256sum accepts it.
func TestChecksums_AreOfEveryFile(t *testing.T) {
	t.Parallel()
	sums := built(t, "SHA256SUMS")
	var listed, files []string
	for line := range strings.Lines(readFile(t, sums)) {
		_, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		listed = append(listed, name)
	}
	entries, err := os.ReadDir(dist)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !entry.IsDir() && entry.Name() != "SHA256SUMS" {
			files = append(files, entry.Name())
		}
	}
	slices.Sort(listed)
	if diff := cmp.Diff(files, listed); diff != "" {
		t.Errorf("the files (-) and those in SHA256SUMS (+):\n%s", diff)
	}
	mustRun(t, "env", "--chdir="+dist, "sha256sum", "--check", "--strict", "SHA256SUMS")
}

// platform is what the program of an archive is built for.
type platform struct {
	elf       elf.Machine
	macho     macho.Cpu
	goarch    string
	setting   string // Go's name of the processor's variant
	processor string
}

var platforms = map[string]platform{
	"linux_amd64":  {elf: elf.EM_X86_64, goarch: "amd64", setting: "GOAMD64", processor: "v1"},
	"linux_arm64":  {elf: elf.EM_AARCH64, goarch: "arm64", setting: "GOARM64", processor: "v8.0"},
	"linux_armv7":  {elf: elf.EM_ARM, goarch: "arm", setting: "GOARM", processor: "7"},
	"darwin_amd64": {macho: macho.CpuAmd64, goarch: "amd64", setting: "GOAMD64", processor: "v1"},
	"darwin_arm64": {macho: macho.CpuArm64, goarch: "arm64", setting: "GOARM64", processor: "v8.0"},
}

// TestArchives_HaveAProgramOfTheirPlatform: each is of this commit, and has no part that only a
// debugger reads; those of Linux need no library.
func TestArchives_HaveAProgramOfTheirPlatform(t *testing.T) {
	t.Parallel()
	for _, archive := range released(t, "*.tar.gz") {
		name := strings.TrimSuffix(filepath.Base(archive), ".tar.gz")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, ok := platforms[platformOf(name)]
			if !ok {
				t.Fatalf("unknown platform of %s", name)
			}
			program, texts := unpack(t, archive)
			if want.elf != 0 {
				checkELF(t, program, want.elf)
			} else {
				checkMachO(t, program, want.macho)
			}
			info, err := buildinfo.ReadFile(program)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, setting := range info.Settings {
				got[setting.Key] = setting.Value
			}
			goos, _, _ := strings.Cut(platformOf(name), "_")
			for key, value := range map[string]string{
				"GOOS": goos, "GOARCH": want.goarch, want.setting: want.processor, "CGO_ENABLED": "0", "-trimpath": "true",
				"vcs.revision": git(t, "rev-parse", "HEAD"), "vcs.time": commitDate(t), "vcs.modified": "false",
			} {
				if got[key] != value {
					t.Errorf("built with %s=%s, want %s", key, got[key], value)
				}
			}
			checkLicenses(t, texts, info)
			checkSBOM(t, strings.TrimSuffix(archive, ".tar.gz")+".cdx.json", info)
			if goos == runtime.GOOS && platformOf(name) == runtime.GOOS+"_"+debArch {
				checkVersion(t, program, texts["byre.8.gz"])
			}
		})
	}
}

// platformOf returns the last two words of an archive's name.
func platformOf(name string) string {
	words := strings.Split(name, "_")
	return strings.Join(words[len(words)-2:], "_")
}

func git(t *testing.T, args ...string) string {
	t.Helper()
	return strings.TrimSpace(mustRun(t, "git", append([]string{"-C", repository}, args...)...))
}

func commitDate(t *testing.T) string {
	t.Helper()
	date, err := time.Parse(time.RFC3339, git(t, "log", "-1", "--format=%cI"))
	if err != nil {
		t.Fatal(err)
	}
	return date.UTC().Format(time.RFC3339)
}

// unpack returns the program of an archive, and the content of its licences and of byre(8).
func unpack(t *testing.T, archive string) (program string, texts map[string]string) {
	t.Helper()
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	compressed, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	texts = map[string]string{}
	for r := tar.NewReader(compressed); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		name := path.Base(header.Name)
		if header.Typeflag == tar.TypeReg && name == "byre" {
			program = unpackProgram(t, header, r)
		} else if name == "byre.8.gz" || slices.Contains(licenses, name) {
			text, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			texts[name] = string(text)
		}
	}
	if program == "" {
		t.Fatalf("%s has no program", archive)
	}
	return program, texts
}

func unpackProgram(t *testing.T, header *tar.Header, content io.Reader) string {
	t.Helper()
	if header.Mode != 0o755 || header.Uid != 0 {
		t.Errorf("the program has the mode %o and the owner %d", header.Mode, header.Uid)
	}
	program := filepath.Join(t.TempDir(), "byre")
	if err := writeFile(program, content); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(program, 0o755); err != nil {
		t.Fatal(err)
	}
	return program
}

func checkELF(t *testing.T, program string, machine elf.Machine) {
	t.Helper()
	file, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if file.Machine != machine {
		t.Errorf("for %s, want %s", file.Machine, machine)
	}
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP || segment.Type == elf.PT_DYNAMIC {
			t.Errorf("not static: it has %s", segment.Type)
		}
	}
	for _, section := range file.Sections {
		if section.Type == elf.SHT_SYMTAB || strings.HasPrefix(section.Name, ".debug_") ||
			strings.HasPrefix(section.Name, ".zdebug_") {
			t.Errorf("not stripped: it has %s", section.Name)
		}
	}
}

func checkMachO(t *testing.T, program string, cpu macho.Cpu) {
	t.Helper()
	file, err := macho.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if file.Cpu != cpu {
		t.Errorf("for %s, want %s", file.Cpu, cpu)
	}
	for _, section := range file.Sections {
		if section.Seg == "__DWARF" {
			t.Errorf("not stripped: it has %s", section.Name)
		}
	}
}

// checkSBOM compares an SBOM with what the program says that it is linked from.
func checkSBOM(t *testing.T, name string, info *buildinfo.BuildInfo) {
	t.Helper()
	type component struct {
		Name    string `json:"name"`
		Version string `json:"version"`
		PURL    string `json:"purl"`
	}
	var bom struct {
		Format      string `json:"bomFormat"`
		SpecVersion string `json:"specVersion"`
		Metadata    struct {
			Component component `json:"component"`
		} `json:"metadata"`
		Components []component `json:"components"`
	}
	if err := json.Unmarshal([]byte(readFile(t, name)), &bom); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if bom.Format != "CycloneDX" || bom.SpecVersion == "" || bom.Metadata.Component.Name != "byre" ||
		bom.Metadata.Component.Version == "" {
		t.Errorf("%s begins with %q %q, of %+v", name, bom.Format, bom.SpecVersion, bom.Metadata.Component)
	}
	listed, linked := map[string]string{}, map[string]string{"std": strings.TrimPrefix(info.GoVersion, "go")}
	for _, c := range bom.Components {
		listed[c.Name] = strings.TrimPrefix(c.Version, "go")
		if !strings.HasPrefix(c.PURL, "pkg:golang/") {
			t.Errorf("%s has no package URL of Go: %q", c.Name, c.PURL)
		}
	}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		linked[module.Path] = module.Version
	}
	if diff := cmp.Diff(linked, listed); diff != "" {
		t.Errorf("the modules that the program is linked from (-) and those of %s (+):\n%s", name, diff)
	}
	kubernetes := strings.TrimSpace(mustRun(t, "go", "-C", repository, "list", "-m", "-f", "{{.Version}}",
		"k8s.io/kubernetes"))
	if listed["k8s.io/kubernetes"] != kubernetes {
		t.Errorf("%s has k8s.io/kubernetes %q, go.mod %q", name, listed["k8s.io/kubernetes"], kubernetes)
	}
}

// checkVersion runs the program: its version is that of the commit's tag or of a development
// build of the commit, and it names the commit and its date. The manual is of that version.
func checkVersion(t *testing.T, program, manual string) {
	t.Helper()
	commit := git(t, "rev-parse", "HEAD")
	version := `[0-9]+\.[0-9]+\.[0-9]+-dev\+` + commit[:12]
	if tag := git(t, "tag", "--points-at", "HEAD", "--list", "v[0-9]*"); tag != "" {
		version = regexp.QuoteMeta(strings.TrimPrefix(tag, "v"))
	}
	want := regexp.MustCompile("^byre " + version + "\ncommit " + commit + " of " + commitDate(t) + "\n")
	if text := mustRun(t, program, "version"); !want.MatchString(text) {
		t.Errorf("byre version prints %q, want %s", text, want)
	}
	compressed, err := gzip.NewReader(strings.NewReader(manual))
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(compressed)
	if title, _, _ := strings.Cut(string(page), "\n.SH"); err != nil ||
		!regexp.MustCompile(`"byre `+version+`"`).MatchString(title) {
		t.Errorf("the manual begins with %q, want the version %s: %v", title, version, err)
	}
}
