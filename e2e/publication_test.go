package e2e

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"byre/e2e/servers"
	"byre/sqlstore/postgres/pgtest"
)

// A program that follows the publications of docs/operations/sql.md sees each state of an object, and each change with
// its author, in the order of the revisions.
func TestPublications_FollowObjectsAndChanges(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cluster, err := pgtest.Config{Settings: []string{"wal_level=logical"}}.Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := cluster.Exec(ctx, "CREATE DATABASE followed"); err != nil {
		t.Fatal(err)
	}
	dsn := cluster.DSN("followed")
	server, err := servers.Byre{Dir: t.TempDir(), Endpoint: dsn, Args: []string{"--controllers="}}.Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}()
	manual, err := os.ReadFile("../docs/operations/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	_, statements, _ := strings.Cut(string(manual), "```sql publications\n")
	statements, _, found := strings.Cut(statements, "```")
	if !found {
		t.Fatal("the manual has no publications")
	}
	c := follow(t, dsn, statements)
	maps := kubernetes.NewForConfigOrDie(server.Config(servers.AdminToken)).CoreV1().ConfigMaps("default")
	if _, err := maps.Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "followed"}, Data: map[string]string{"key": "one"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Patch(ctx, "followed", types.MergePatchType, []byte(`{"data":{"key":"two"}}`),
		metav1.PatchOptions{FieldManager: "tester"}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(ctx, "followed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.readUntil("delete of undo_log")
	want := []string{
		"insert current_objects create one", "insert undo_log create ",
		"update current_objects patch two", "insert undo_log patch one",
		"delete current_objects  ", "insert undo_log delete two",
	}
	for _, line := range want {
		if !slices.Contains(c.seen, line) {
			t.Errorf("%q is missing in %q", line, c.seen)
		}
	}
	if !slices.IsSorted(c.revisions) || len(c.revisions) < 3 {
		t.Errorf("the revisions are %q", c.revisions)
	}
}

// consumer reads the publications of a database.
type consumer struct {
	*testing.T
	conn      *pgconn.PgConn
	relations map[uint32]*pglogrepl.RelationMessage
	// seen are the rows of the ConfigMap followed: what was done to which table, with the verb and the value of data.key.
	seen []string
	// revisions are those of its changes, of equal length.
	revisions []string
}

// follow makes the publications, and a slot from which the consumer reads what is committed from now on.
func follow(t *testing.T, dsn, statements string) *consumer {
	t.Helper()
	owner, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close(context.WithoutCancel(t.Context()))
	if _, err := owner.Exec(t.Context(), statements); err != nil {
		t.Fatal(err)
	}
	config, err := pgconn.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // the cluster goes too
	slot, err := pglogrepl.CreateReplicationSlot(t.Context(), conn, "follower", "pgoutput",
		pglogrepl.CreateReplicationSlotOptions{Temporary: true})
	if err != nil {
		t.Fatal(err)
	}
	start, err := pglogrepl.ParseLSN(slot.ConsistentPoint)
	if err != nil {
		t.Fatal(err)
	}
	err = pglogrepl.StartReplication(t.Context(), conn, "follower", start, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names 'byre_objects,byre_changes'"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &consumer{T: t, conn: conn, relations: map[uint32]*pglogrepl.RelationMessage{}}
}

// readUntil reads until the change of the ConfigMap's deletion has come.
func (c *consumer) readUntil(what string) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
	defer cancel()
	for !slices.Contains(c.seen, "insert undo_log delete two") {
		message, err := c.conn.ReceiveMessage(ctx)
		if err != nil {
			c.Fatalf("waiting for the %s: %v; seen %q", what, err, c.seen)
		}
		data, ok := message.(*pgproto3.CopyData)
		if !ok || data.Data[0] != pglogrepl.XLogDataByteID {
			continue // a keepalive
		}
		log, err := pglogrepl.ParseXLogData(data.Data[1:])
		if err != nil {
			c.Fatal(err)
		}
		if err := c.read(log.WALData); err != nil {
			c.Fatal(err)
		}
	}
}

func (c *consumer) read(data []byte) error {
	message, err := pglogrepl.Parse(data)
	if err != nil {
		return err
	}
	switch m := message.(type) {
	case *pglogrepl.RelationMessage:
		c.relations[m.RelationID] = m
	case *pglogrepl.InsertMessage:
		return c.add("insert", m.RelationID, m.Tuple)
	case *pglogrepl.UpdateMessage:
		return c.add("update", m.RelationID, m.NewTuple)
	case *pglogrepl.DeleteMessage:
		return c.add("delete", m.RelationID, m.OldTuple)
	}
	return nil
}

// add adds a row of the ConfigMap.
func (c *consumer) add(action string, relation uint32, tuple *pglogrepl.TupleData) error {
	of := c.relations[relation]
	if of == nil || len(of.Columns) < len(tuple.Columns) {
		return errors.New("a row of an unknown relation")
	}
	row := map[string]string{}
	for i, column := range tuple.Columns {
		row[of.Columns[i].Name] = string(column.Data)
	}
	if row["name"] != "followed" {
		return nil
	}
	_, value, _ := strings.Cut(row["value"], `"data":{"key":"`)
	value, _, _ = strings.Cut(value, `"`)
	c.seen = append(c.seen, strings.Join([]string{action, of.RelationName, row["verb"], value}, " "))
	if of.RelationName == "undo_log" {
		c.revisions = append(c.revisions, row["revision"])
	}
	return nil
}
