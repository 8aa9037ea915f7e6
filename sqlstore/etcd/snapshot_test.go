package etcd_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"byre/sqlstore/etcd"
)

// write writes a snapshot file.
func write(t *testing.T, revision int64, all ...etcd.KeyValue) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "snapshot.db")
	w, err := etcd.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, kv := range all {
		if err := w.Put(kv); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string, options etcd.Options) (all []etcd.KeyValue, revision int64) {
	t.Helper()
	s, err := etcd.Open(t.Context(), path, options)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Each(t.Context(), func(kv etcd.KeyValue) error {
		all = append(all, kv)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if s.Len() != len(all) {
		t.Errorf("Each yields %d keys, and Len is %d", len(all), s.Len())
	}
	return all, s.Revision()
}

func TestSnapshot_IsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	var want []etcd.KeyValue
	for i := range int64(12_000) { // the Writer needs three transactions
		want = append(want,
			etcd.KeyValue{Key: fmt.Sprintf("/registry/%d", i%1000*1000+i), Value: []byte{byte(i), 0, 255}, Created: i/2 + 1,
				Revision: i + 1})
	}
	want[3].TTL, want[4].TTL, want[5].TTL = time.Minute, time.Minute, time.Hour
	got, revision := read(t, write(t, 20_000, want...), etcd.Options{})
	if revision != 20_000 {
		t.Errorf("it is at revision %d, want 20000", revision)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the %d keys that were read differ from the %d that were written", len(got), len(want))
	}
}

func TestSnapshot_RoundsLeasesUp(t *testing.T) {
	t.Parallel()
	got, _ := read(t, write(t, 1, etcd.KeyValue{Key: "k", Created: 1, Revision: 1, TTL: 61 * time.Second}), etcd.Options{})
	if got[0].TTL != 2*time.Minute {
		t.Errorf("a lease of 61 s lasts for %v", got[0].TTL)
	}
}

// edit changes the database in a snapshot file, and removes the hash.
func edit(t *testing.T, path string, change func(keys *bbolt.Bucket) error) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()/512*512); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(func(tx *bbolt.Tx) error { return change(tx.Bucket([]byte("key"))) }); err != nil {
		t.Fatal(err)
	}
}

func put(keys *bbolt.Bucket, main uint64, mark string, kv *mvccpb.KeyValue) error {
	at := append(binary.BigEndian.AppendUint64(nil, main), '_')
	at = append(binary.BigEndian.AppendUint64(at, 0), mark...)
	value, err := proto.Marshal(kv)
	return errors.Join(err, keys.Put(at, value))
}

// TestSnapshot_HistoryIsReadToItsEnd reads the snapshot of a server that was never
// compacted.
func TestSnapshot_HistoryIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	path := write(t, 3, etcd.KeyValue{Key: "a", Created: 1, Revision: 1}, etcd.KeyValue{Key: "b", Created: 2, Revision: 2},
		etcd.KeyValue{Key: "c", Created: 3, Revision: 3})
	edit(t, path, func(keys *bbolt.Bucket) error {
		return errors.Join(
			put(keys, 4, "",
				&mvccpb.KeyValue{Key: []byte("a"), Value: []byte("new"), CreateRevision: 1, ModRevision: 4, Version: 2}),
			put(keys, 5, "t", &mvccpb.KeyValue{Key: []byte("b")}),
			put(keys, 6, "t", &mvccpb.KeyValue{Key: []byte("c")}),
			put(keys, 7, "",
				&mvccpb.KeyValue{Key: []byte("c"), Value: []byte("again"), CreateRevision: 7, ModRevision: 7, Version: 1}),
			put(keys, 1007, "", &mvccpb.KeyValue{}), // etcdutl's --bump-revision
		)
	})
	if _, err := etcd.Open(t.Context(), path, etcd.Options{}); !errors.Is(err, etcd.ErrNoHash) {
		t.Errorf("a file without a hash is opened: %v", err)
	}
	got, revision := read(t, path, etcd.Options{SkipHashCheck: true})
	want := []etcd.KeyValue{{Key: "a", Value: []byte("new"), Created: 1, Revision: 4},
		{Key: "c", Value: []byte("again"), Created: 7, Revision: 7}}
	if !reflect.DeepEqual(got, want) || revision != 1007 {
		t.Errorf("it has %v at revision %d", got, revision)
	}
}

func TestSnapshot_RefusesADamagedFile(t *testing.T) {
	t.Parallel()
	whole, err := os.ReadFile(write(t, 1,
		etcd.KeyValue{Key: "key", Value: bytes.Repeat([]byte("v"), 10_000), Created: 1, Revision: 1}))
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	for name, c := range map[string]struct {
		file []byte
		skip bool
		want error
	}{
		"a flipped bit":           {flipped, false, etcd.ErrWrongHash},
		"a page is missing":       {whole[4096:], false, etcd.ErrWrongHash},
		"cut":                     {whole[:len(whole)-100], false, etcd.ErrNoHash},
		"cut by pages, unchecked": {whole[:3*4096], true, etcd.ErrNotEtcd},
		"empty":                   {nil, true, etcd.ErrNotEtcd},
		"text":                    {bytes.Repeat([]byte("text"), 4096), true, etcd.ErrNotEtcd},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "damaged.db")
			if err := os.WriteFile(path, c.file, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := etcd.Open(t.Context(), path, etcd.Options{SkipHashCheck: c.skip}); !errors.Is(err, c.want) {
				t.Errorf("it is opened with %v, want %v", err, c.want)
			}
			if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, c.file) {
				t.Errorf("the file has changed, or %v", err)
			}
		})
	}
}

func TestWriter_LeavesNothingUnlessItFinishes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "snapshot.db")
	w, err := etcd.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Put(etcd.KeyValue{Key: "a", Created: 1, Revision: 1}); err != nil {
		t.Fatal(err)
	}
	if err := w.Put(etcd.KeyValue{Key: "b", Created: 1, Revision: 1}); err == nil {
		t.Error("two keys have one revision")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Finish(ended, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("Finish with a context that has ended: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Create(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create over a file that exists: %v", err)
	}
}
