package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"byre/sqlstore"
	"byre/sqlstore/sqlite"
	"byre/sqlstore/storetest"
)

// damageFile changes a row of each table, and destroys a page of each, as a disk may do. It returns
// the keys of the objects that are lost, and the last revision whose change is.
func damageFile(t *testing.T, path string, before storetest.Rows) (lost map[sqlstore.Key]bool, lastLost int64) {
	t.Helper()
	changed, inHistory := before.Objects[len(before.Objects)-1], before.Changes[len(before.Changes)/2]
	tool(t, "sqlite3", path, "UPDATE current_objects SET who = who || 'x' WHERE created_revision = "+strconv.FormatInt(changed.Created, 10)+
		"; UPDATE undo_log SET who = who || 'x' WHERE revision = "+strconv.FormatInt(inHistory.Revision, 10)+"; PRAGMA wal_checkpoint(TRUNCATE)")
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"current_objects", "undo_log"} {
		leaves := strings.Fields(tool(t, "sqlite3", "-readonly", path, "SELECT pageno FROM dbstat WHERE name = '"+table+"' AND pagetype = 'leaf' ORDER BY path"))
		page, err := strconv.Atoi(leaves[1])
		if err != nil {
			t.Fatal(err)
		}
		size := int(file[16])<<8 | int(file[17])
		clear(file[(page-1)*size : page*size])
	}
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	lost = map[sqlstore.Key]bool{}
	for _, row := range before.Objects {
		lost[row.Key] = true
	}
	read := map[int64]bool{}
	err = sqlite.ReadDamaged(t.Context(), path, func(s sqlstore.Snapshot) error {
		for row, err := range s.Objects {
			if err == nil {
				delete(lost, row.Key)
			}
		}
		for row, err := range s.Changes {
			if err == nil {
				read[row.Revision] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range before.Changes {
		if !read[row.Revision] {
			lastLost = max(lastLost, row.Revision)
		}
	}
	if !lost[changed.Key] || len(lost) < 2 || len(lost) > len(before.Objects)/2 || lastLost < inHistory.Revision || len(read) < len(before.Changes)/2 {
		t.Fatalf("%d of %d objects are lost, and %d of %d changes are read", len(lost), len(before.Objects), len(read), len(before.Changes))
	}
	return lost, lastLost
}

// TestDamage_IsCountedAndLeftOut: a check of a damaged file names each row that can't be read, and
// goes on. A backup fails, unless it is told to leave these rows out; it names them too. What is
// restored from it is everything else.
func TestDamage_IsCountedAndLeftOut(t *testing.T) {
	t.Parallel()
	before := storetest.RandomRows(t, rand.New(rand.NewPCG(21, 21))).WithoutKept()
	database := sqliteWith(t, before)
	lost, lastLost := damageFile(t, strings.TrimPrefix(database, "sqlite://"), before)

	status, out, errOut := call("check", "--endpoint", database)
	if status != statusDamaged || !strings.Contains(out, "checked ") || !strings.Contains(errOut, " findings: keep a copy of the database") {
		t.Errorf("check: %d %s %s", status, out, errOut)
	}
	for key := range lost {
		if strings.Count(out, "current_objects: "+key.Display()+": the row can't be read")+
			strings.Count(out, key.Display()+": the row does not have its checksum") < 1 {
			t.Errorf("the check does not name %s", key.Display())
		}
	}
	if strings.Contains(out, "which is not there") {
		t.Errorf("the check takes damaged rows for missing ones: %s", out)
	}

	if status, _, errOut := call("check", "--endpoint", database, "--repair"); status != statusDamaged || strings.Contains(errOut, "repaired") {
		t.Errorf("repair: %d %s", status, errOut)
	}
	file := filepath.Join(t.TempDir(), "byre.zst")
	expectFailure(t, `"byre backup --skip-damaged" saves what can be read`, "backup", "--endpoint", database, file)
	status, out, errOut = call("backup", "--endpoint", database, "--skip-damaged", file)
	if status != statusDamaged || !strings.Contains(out, "\nsha256 ") || !strings.Contains(errOut, " damaged parts of the database are not in the backup") {
		t.Errorf("backup: %d %s %s", status, out, errOut)
	}
	for key := range lost {
		if !strings.Contains(errOut, key.Display()+": the row ") {
			t.Errorf("the backup does not name %s", key.Display())
		}
	}
	if want := "the history up to revision " + strconv.FormatInt(lastLost, 10); !strings.Contains(errOut, want) {
		t.Errorf("the backup does not say %q: %s", want, errOut)
	}
	target := "sqlite://" + filepath.Join(t.TempDir(), "byre.db")
	succeed(t, "restore", "--endpoint", target, file)
	held := map[sqlstore.Key][]byte{}
	err := readDatabase(t.Context(), target, func(s sqlstore.Snapshot) error {
		for row, err := range s.Objects {
			if err != nil {
				return err
			}
			held[row.Key] = row.Value
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range before.Objects {
		if value, ok := held[row.Key]; ok == lost[row.Key] || ok && !bytes.Equal(value, row.Value) {
			t.Errorf("%s is restored: %t", row.Display(), ok)
		}
	}
	// The history after the damage is there.
	succeed(t, "restore", "--endpoint", "sqlite://"+filepath.Join(t.TempDir(), "byre.db"), "--at", strconv.FormatInt(max(lastLost, before.Compacted), 10), file)

	sound := sqliteWith(t, before)
	if _, errOut := succeed(t, "backup", "--endpoint", sound, "--skip-damaged", filepath.Join(t.TempDir(), "byre.zst")); errOut != "" {
		t.Errorf("of a sound database: %s", errOut)
	}
}
