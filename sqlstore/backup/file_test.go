package backup_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/klauspost/compress/zstd"

	"byre/sqlstore"
	"byre/sqlstore/backup"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

func randomRows(t testing.TB) storetest.Rows {
	t.Helper()
	rows := storetest.RandomRows(t, rand.New(rand.NewPCG(1, 1)))
	// JSON, or Go's encoder of it, treats these characters specially.
	rows.Objects[0].Value = []byte("{\n  \"a\": \"<&>\\u2028\u2028\\\"\\u0000\", \"n\": 1e400 }")
	rows.Objects[0].Author.User = "ä\u2028\"\\\x01"
	return rows
}

func write(t testing.TB, rows storetest.Rows) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := backup.Write(&out, rows.Snapshot(), "byre v1"); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// verify reads a whole backup.
func verify(file []byte) error {
	b, err := backup.Open(bytes.NewReader(file))
	if err != nil {
		return err
	}
	_, err = b.Verify(func(s sqlstore.Snapshot) sqlstore.Snapshot { return s })
	return err
}

func TestFile_HasWhatWasWritten(t *testing.T) {
	t.Parallel()
	want := randomRows(t)
	file := write(t, want)
	if err := verify(file); err != nil {
		t.Fatal(err)
	}
	b, err := backup.Open(bytes.NewReader(file))
	if err != nil || b.Program != "byre v1" {
		t.Fatalf("%+v, %v", b, err)
	}
	for range 2 {
		got, err := storetest.Collect(b.Snapshot())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("(-written +read):\n%s", diff)
		}
	}
	for range b.Snapshot().Objects {
		break // ends the reading and the goroutine that reads ahead
	}
	for range b.Snapshot().Changes {
		break
	}
}

// docs/decisions/0017 says how to read and check a backup without byre.
func TestFile_IsReadableWithCommonTools(t *testing.T) {
	t.Parallel()
	rows := randomRows(t)
	text := decompress(t, write(t, rows))
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) != len(rows.Objects)+len(rows.Changes)+2 {
		t.Fatalf("%d lines", len(lines))
	}
	var first struct {
		Byre struct{ Version, Revision, Objects int64 }
	}
	var object struct{ Object struct{ Name, Value string } }
	var last struct{ End struct{ SHA256 string } }
	for line, into := range map[string]any{lines[0]: &first, lines[1]: &object, lines[len(lines)-1]: &last} {
		if err := json.Unmarshal([]byte(line), into); err != nil {
			t.Fatal(err)
		}
	}
	if first.Byre.Version != 4 || first.Byre.Revision != rows.Revision ||
		object.Object.Value != string(rows.Objects[0].Value) {
		t.Errorf("%+v, %+v", first, object)
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(lines[:len(lines)-1], "")))); sum != last.End.SHA256 {
		t.Errorf("sum %s, the last line says %s", sum, last.End.SHA256)
	}
}

// A backup of version 1, as byre wrote it before its first release, is read. It does not say how far
// the history of each resource reaches back: that of compacted revisions is there for SQL.
func TestOpen_ReadsVersion1(t *testing.T) {
	t.Parallel()
	text := `{"byre":{"version":1,"program":"byre v0","revision":4,"compacted":3,"epoch":"e","time":"2026-01-01T00:00:00.000001Z","objects":1}}
{"object":{"group":"apps","resource":"deployments","owner":"builtin","namespace":"n","name":"a","uid":"u","created":1,"revision":4,"time":"2026-01-01T00:00:00Z","user":"alice","verb":"patch","form":"f","value":"{}"}}
{"change":{"revision":1,"op":"create","time":"2026-01-01T00:00:00Z","user":"alice","verb":"create","group":"apps","resource":"deployments","owner":"builtin","namespace":"n","name":"a","uid":"u","created":1}}
{"change":{"revision":4,"op":"update","time":"2026-01-01T00:00:00Z","user":"alice","verb":"patch","auditID":"i","group":"apps","resource":"deployments","owner":"builtin","namespace":"n","name":"a","uid":"u","replaces":1,"created":1,"form":"f","value":"{\"a\":1}"}}
`
	text += fmt.Sprintf("{\"end\":{\"objects\":1,\"changes\":2,\"sha256\":\"%x\"}}\n", sha256.Sum256([]byte(text)))
	file, err := backup.Open(bytes.NewReader(compress(t, text)))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "byre.db")
	if err := sqlite.Load(t.Context(), path, file.Snapshot()); err != nil {
		t.Fatal(err)
	}
	if err := sqlite.ReadSnapshot(t.Context(), path, func(s sqlstore.Snapshot) error {
		rows, err := storetest.Collect(s)
		if err != nil {
			return err
		}
		if object, change := rows.Objects[0], rows.Changes[len(rows.Changes)-1]; object.Encoding != "f" ||
			change.Encoding != "f" {
			t.Errorf("the encodings are %q and %q", object.Encoding, change.Encoding)
		}
		if r := rows.RetainedOf(rows.Objects[0].Of()); len(rows.Changes) != 2 || r.ResumableAfter != 3 || r.CompleteAfter != 3 {
			t.Errorf("%d changes, the history is %v", len(rows.Changes), rows.Retained)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A backup that was cut off at any byte is refused, and so is one with a changed byte,
// unless it decompresses to the same text.
func TestVerify_RefusesDamage(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("reads 400 backups")
	}
	rows := randomRows(t)
	file := write(t, rows)
	text := decompress(t, file)
	random := rand.New(rand.NewPCG(7, 7))
	for range 100 {
		if err := verify(file[:random.IntN(len(file))]); !errors.Is(err, sqlstore.ErrBroken) {
			t.Errorf("truncated: %v", err)
		}
		flipped := bytes.Clone(file)
		flipped[random.IntN(len(file))] ^= 1 << random.IntN(8)
		if err := verify(flipped); !errors.Is(err, sqlstore.ErrBroken) {
			if other, decodeErr := decode(flipped); decodeErr != nil || other != text {
				t.Errorf("a bit is flipped: %v", err)
			}
		}
		// The cut lies inside a complete frame, as if zstd had no checksum.
		cut := random.IntN(len(text))
		if err := verify(compress(t, text[:cut])); !errors.Is(err, sqlstore.ErrBroken) {
			t.Errorf("the text is truncated: %v", err)
		}
		changed := []byte(text)
		changed[random.IntN(strings.LastIndex(text, `{"end"`))] ^= 1
		if err := verify(compress(t, string(changed))); err == nil {
			t.Error("a byte of the text is changed")
		}
	}
	lines := strings.SplitAfter(text, "\n")
	for name, spoilt := range map[string]string{
		"nothing":         "",
		"an empty line":   "\n" + text,
		"something after": text + "{}\n",
		"twice":           text + text,
		"no header":       strings.Join(lines[1:], ""),
		"line missing":    strings.Join(append(lines[:3:3], lines[4:]...), ""),
		"another owner":   strings.Replace(text, `"owner":"builtin"`, `"owner":"me"`, 1),
	} {
		if err := verify(compress(t, spoilt)); !errors.Is(err, sqlstore.ErrBroken) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, other := range map[string][]byte{
		"not compressed": []byte(text), "SQLite": []byte("SQLite format 3\x00"), "empty": nil,
	} {
		if err := verify(other); !errors.Is(err, sqlstore.ErrBroken) {
			t.Errorf("%s: %v", name, err)
		}
	}
	newer := compress(t, strings.Replace(text, `"version":4`, `"version":5`, 1))
	if err := verify(newer); !errors.Is(err, backup.ErrNewer) {
		t.Errorf("newer: %v", err)
	}
}

// A snapshot that no database could load is not written.
func TestWrite_RefusesABrokenStore(t *testing.T) {
	t.Parallel()
	rows := randomRows(t)
	rows.Objects[1].Value = []byte("\"\xff\"")
	if err := backup.Write(&bytes.Buffer{}, rows.Snapshot(), ""); !errors.Is(err, sqlstore.ErrBroken) {
		t.Errorf("invalid UTF-8: %v", err)
	}
	failing := errors.New("disk full")
	if err := backup.Write(failingWriter{failing}, randomRows(t).Snapshot(), ""); !errors.Is(err, failing) {
		t.Errorf("disk full: %v", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func FuzzOpen(f *testing.F) {
	f.Add(write(f, randomRows(f)))
	f.Add(compressAll(`{"byre":{"version":1,"revision":1,"compacted":0,"epoch":"e","time":"2030-01-01T00:00:00Z","objects":0}}` + "\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		if err := verify(file); err != nil && !errors.Is(err, sqlstore.ErrBroken) && !errors.Is(err, backup.ErrNewer) {
			t.Fatal(err)
		}
	})
}

func decode(file []byte) (string, error) {
	d, err := zstd.NewReader(nil)
	if err != nil {
		return "", err
	}
	defer d.Close()
	text, err := d.DecodeAll(file, nil)
	return string(text), err
}

func decompress(t testing.TB, file []byte) string {
	t.Helper()
	text, err := decode(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func compress(t testing.TB, text string) []byte {
	t.Helper()
	return compressAll(text)
}

func compressAll(text string) []byte {
	e, err := zstd.NewWriter(nil)
	if err != nil {
		panic(err)
	}
	defer e.Close()
	return e.EncodeAll([]byte(text), nil)
}

func BenchmarkWriteAndVerify(b *testing.B) {
	rows := storetest.Rows{Header: sqlstore.Header{Epoch: "e", ObjectCount: 2000}}
	rows.Compacted, rows.Revision = 2000, 2000
	random := rand.New(rand.NewPCG(1, 1))
	size := int64(0)
	for i := range 2000 {
		var value bytes.Buffer
		value.WriteString(`{"kind":"Pod","metadata":{"uid":"`)
		for value.Len() < 4000 {
			fmt.Fprintf(&value, `","field%d":"%x`, random.IntN(30), random.Uint32()%1000)
		}
		value.WriteString(`"}}`)
		size += int64(value.Len())
		rows.Objects = append(rows.Objects, &sqlstore.ObjectRow{
			Record: sqlstore.Record{Key: sqlstore.Key{Resource: "pods", Name: fmt.Sprint(i)}, Created: 1, Revision: int64(i + 1),
				Value: value.Bytes()},
		})
	}
	b.Run("Write", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			write(b, rows)
		}
	})
	file := write(b, rows)
	b.Run("Verify", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if err := verify(file); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.ReportMetric(float64(size)/float64(len(file)), "compressed")
}
