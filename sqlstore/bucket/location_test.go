package bucket_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"byre/sqlstore/bucket"
	"byre/sqlstore/storetest"
)

func fill(content []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.Copy(w, bytes.NewReader(content))
		return err
	}
}

// random returns bytes that cannot be compressed.
func random(size int) []byte {
	content := make([]byte, size)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(content)
	return content
}

func expectContent(t *testing.T, l bucket.Location, want []byte) {
	t.Helper()
	file, err := l.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for range 2 { // a backup can be read more than once
		if got, err := io.ReadAll(file); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: read %d bytes, %v; want %d", l.Name, len(got), err, len(want))
		}
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
	}
}

// serveS3 starts an S3 service with the bucket "backups", which the environment names.
func serveS3(t *testing.T) {
	t.Helper()
	storetest.ServeS3Here(t, storetest.NewS3(t, "backups"))
}

func TestLocation_S3(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 65 MiB twice")
	}
	serveS3(t)
	l := bucket.Location{Name: "s3://backups/clusters/byre.zst"}
	large := random(65 << 20) // two parts
	if err := l.Write(t.Context(), fill(large)); err != nil {
		t.Fatal(err)
	}
	expectContent(t, l, large)
	if err := l.Write(t.Context(), fill(nil)); !errors.Is(err, bucket.ErrExists) {
		t.Errorf("without force: %v", err)
	}
	failed := errors.New("database failed")
	l.Force = true
	if err := l.Write(t.Context(), func(w io.Writer) error {
		return errors.Join(fill(large)(w), failed)
	}); !errors.Is(err, failed) {
		t.Errorf("a write that fails: %v", err)
	}
	expectContent(t, l, large) // the earlier content
	small := random(100)
	if err := l.Write(t.Context(), fill(small)); err != nil {
		t.Fatal(err)
	}
	expectContent(t, l, small)
	l.Name = "s3://nowhere/byre.zst"
	if err := l.Write(t.Context(), fill(small)); err == nil || !strings.HasPrefix(err.Error(), l.Name+": ") ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("no bucket: %v", err)
	}
	if _, err := l.Open(t.Context()); err == nil {
		t.Error("read from no bucket")
	}
	for _, endpoint := range []string{"localhost:9000", "ftp://localhost", "https://localhost/path", "://"} {
		l.S3.Endpoint = endpoint
		if err := l.Write(t.Context(), fill(small)); err == nil || !strings.Contains(err.Error(), "must be a URL") {
			t.Errorf("endpoint %s: %v", endpoint, err)
		}
	}
}

func TestLocation_File(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := bucket.Location{Name: filepath.Join(dir, "byre.zst")}
	failed := errors.New("database failed")
	if err := l.Write(t.Context(), func(w io.Writer) error {
		return errors.Join(fill([]byte("half"))(w), failed)
	}); !errors.Is(err, failed) {
		t.Errorf("a write that fails: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("a write that failed left %v, %v", entries, err)
	}
	if err := l.Write(t.Context(), fill([]byte("one"))); err != nil {
		t.Fatal(err)
	}
	if err := l.Write(t.Context(), fill([]byte("two"))); !errors.Is(err, bucket.ErrExists) {
		t.Errorf("without force: %v", err)
	}
	expectContent(t, l, []byte("one"))
	l.Force = true
	if err := l.Write(t.Context(), fill([]byte("two"))); err != nil {
		t.Fatal(err)
	}
	expectContent(t, l, []byte("two"))
	l.Name = filepath.Join(dir, "absent", "byre.zst")
	if err := l.Write(t.Context(), fill(nil)); err == nil ||
		!strings.HasSuffix(err.Error(), "there is no directory "+filepath.Join(dir, "absent")) {
		t.Errorf("in a directory that does not exist: %v", err)
	}
}

// TestLocation_FileInTheWorkingDirectory: nothing is written elsewhere.
func TestLocation_FileInTheWorkingDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "nowhere"))
	for _, name := range []string{"one.zst", "./two.zst"} {
		l := bucket.Location{Name: name}
		if err := l.Write(t.Context(), fill([]byte(name))); err != nil {
			t.Fatal(err)
		}
		expectContent(t, l, []byte(name))
	}
}

func TestLocation_StandardStreams(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := bucket.Location{Name: "-", Stdout: &out, Stdin: strings.NewReader("input")}
	if err := l.Write(t.Context(), fill([]byte("output"))); err != nil || out.String() != "output" {
		t.Errorf("%q, %v", out.String(), err)
	}
	expectContent(t, l, []byte("input"))
}

func TestLocation_RefusesHalfAnAddress(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"s3:", "s3://", "s3://bucket", "s3://bucket/", "s3:///key", "s3:bucket/key",
		"s3://bucket/dir/"} {
		l := bucket.Location{Name: name}
		if _, err := l.Open(t.Context()); err == nil || !strings.Contains(err.Error(), "want s3://BUCKET/KEY") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDirectory_ListsAndRemovesBackups(t *testing.T) {
	service := storetest.NewS3(t, "backups")
	storetest.ServeS3Here(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head, found := r.Clone(r.Context()), httptest.NewRecorder()
		head.Method = http.MethodHead
		if service.ServeHTTP(found, head); r.Method == http.MethodDelete && found.Code == http.StatusNotFound {
			w.WriteHeader(http.StatusNotFound) // as Google's service, and not as AWS
			return
		}
		service.ServeHTTP(w, r)
	}))
	local := t.TempDir()
	if err := os.Mkdir(filepath.Join(local, "below.zst"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{local, local + "/", "s3://backups", "s3://backups/", "s3://backups/clusters/one",
		"s3://backups/clusters/one/"} {
		d := bucket.Directory{Name: name}
		for i, file := range []string{"b.zst", "a.zst", "note", ".c.zst", "d/e.zst"} {
			if file == "d/e.zst" && !strings.HasPrefix(name, "s3:") {
				continue
			}
			if err := d.File(file).Write(t.Context(), fill(random(i+1))); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(want ...bucket.Entry) {
			t.Helper()
			got, err := d.List(t.Context())
			for i := range got {
				if since := time.Since(got[i].Modified); since < -time.Minute || since > time.Minute {
					t.Errorf("%s of %s was modified %s ago", got[i].Name, name, since)
				}
				got[i].Modified = time.Time{}
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s has %v, %v, want %v", name, got, err, want)
			}
		}
		expect(bucket.Entry{Name: "a.zst", Size: 2}, bucket.Entry{Name: "b.zst", Size: 1})
		file, err := d.File("a.zst").Peek(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if content, err := io.ReadAll(file); err != nil || !bytes.Equal(content, random(2)) {
			t.Errorf("%s: read %v, %v", name, content, err)
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
		for _, file := range []string{"a.zst", "b.zst", "note", ".c.zst", "d/e.zst"} {
			if err := d.Remove(t.Context(), file); err != nil && file != "d/e.zst" {
				t.Errorf("remove %s of %s: %v", file, name, err)
			}
			if file == "a.zst" {
				expect(bucket.Entry{Name: "b.zst", Size: 1})
			}
		}
	}
	for name, want := range map[string]string{filepath.Join(local, "absent"): "no such file", "s3:": "want s3://BUCKET",
		"s3:///prefix": "want s3://BUCKET", "s3://nowhere": "s3://nowhere: "} {
		if _, err := (bucket.Directory{Name: name}).List(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// Conditional writes are tested with services that lie, too, by package replication.
func TestClient_ReadsWritesListsAndDeletes(t *testing.T) {
	serveS3(t)
	open := func(place string) *bucket.Client {
		client, err := bucket.S3{}.Open(place)
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	c := open("s3://backups/clusters/").In("one")
	if _, _, err := c.Get(t.Context(), "absent", 0, 0); !errors.Is(err, fs.ErrNotExist) ||
		!strings.HasPrefix(err.Error(), "s3://backups/clusters/one/absent: ") {
		t.Errorf("no object: %v", err)
	}
	if _, _, err := open("s3://nowhere").Get(t.Context(), "absent", 0, 0); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no bucket: %v", err)
	}
	etag, err := c.Replace(t.Context(), "lease", []byte("0123456789"), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{"", etag + "0"} {
		if _, err := c.Replace(t.Context(), "lease", []byte("other"), other); !errors.Is(err, bucket.ErrChanged) {
			t.Errorf("replace %q, not %q: %v", other, etag, err)
		}
	}
	for _, test := range []struct {
		offset, size int64
		want         string
	}{{0, 0, "0123456789"}, {0, 4, "0123"}, {4, 0, "456789"}, {4, 2, "45"}} {
		body, _, err := c.Get(t.Context(), "lease", test.offset, test.size)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(body); err != nil || string(got) != test.want || body.Close() != nil {
			t.Errorf("%d bytes from %d: %q, %v", test.size, test.offset, got, err)
		}
	}
	if size, err := c.Put(t.Context(), "a/b", bytes.NewReader(random(3))); err != nil || size != 3 {
		t.Errorf("put %d bytes, %v", size, err)
	}
	for _, test := range []struct {
		start     string
		recursive bool
		want      []string
	}{
		{"", false, []string{"a/", "lease"}}, {"", true, []string{"a/b", "lease"}},
		{"a/", false, []string{"a/b"}}, {"c", true, nil},
	} {
		var names []string
		entries, err := c.List(t.Context(), test.start, test.recursive)
		for _, entry := range entries {
			names = append(names, entry.Name)
		}
		slices.Sort(names) // folders come last
		if err != nil || !slices.Equal(names, test.want) {
			t.Errorf("%q, recursive %v: %q, %v", test.start, test.recursive, names, err)
		}
	}
	if err := errors.Join(c.Delete(t.Context(), "a/b", "lease", "absent"), c.Delete(t.Context(), "absent")); err != nil {
		t.Error(err)
	}
	if left, err := c.List(t.Context(), "", true); err != nil || len(left) > 0 {
		t.Errorf("deleted, but for %v, %v", left, err)
	}
}
