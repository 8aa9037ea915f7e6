package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"byre/apiserver/server"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/sqlite"
)

func newCompactCommand() *cobra.Command {
	store := server.NewStoreOptions()
	var certDir, resource string
	keep := time.Hour
	cmd := &cobra.Command{
		Use:   "compact",
		Short: "Delete history now, to make space",
		Long: "Delete history now, to make space.\n\n" +
			"A delete of objects frees no space while history keeps them. This deletes the history that\n" +
			"is older than --keep, whatever --retention keeps. A watch that resumes from before lists\n" +
			"again. Resources that keep their history for longer than --retention, by --retention-for,\n" +
			"are left out and named; --resource deletes theirs.\n\n" +
			"The command shows how far it is. It can be interrupted; what it has deleted stays deleted,\n" +
			"and the next run goes on. If all of the history is younger than --keep, it says so.\n\n" +
			"A running server does it, with admin.kubeconfig of --data-dir; if none answers, or if\n" +
			"--endpoint names a database, the database is opened instead; --retention is then the time for\n" +
			"which servers have kept the history of most resources. A SQLite file becomes smaller: at\n" +
			"once without a server, which only returns it little by little. PostgreSQL keeps the space\n" +
			"for what is written next, until VACUUM FULL.",
		Example: "  byre compact --data-dir /var/lib/byre --keep 10m\n" +
			"  byre compact --data-dir /var/lib/byre --resource secrets",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if resource != "" && resource != "*" && !cmd.Flags().Changed("keep") {
				keep = 0
			}
			if keep < 0 {
				return errors.New("--keep must not be negative")
			}
			c := compaction{
				request: server.CompactRequest{Keep: keep, Resource: resource},
				out:     cmd.OutOrStdout(), progress: newProgress(cmd.ErrOrStderr(), "deleting history"),
			}
			return c.run(cmd.Context(), store, certsFlags{dataDir: store.DataDir, certDir: certDir})
		},
	}
	store.AddDatabaseFlags(cmd.Flags())
	cmd.Flags().StringVar(&certDir, "cert-dir", "", "Directory of the certificates. If not set, pki below --data-dir.")
	cmd.Flags().DurationVar(&keep, "keep", keep,
		"How long history is kept, such as 10m or 2d; 0 deletes all. With the name of a --resource the default is 0.")
	cmd.Flags().StringVar(&resource, "resource", "",
		"Delete the history of this resource only, such as secrets or deployments.apps, also if it is kept for longer than that of others; * means all.")
	return cmd
}

// returnTime is for how long the command waits while a server returns the space of what is deleted: of many
// gigabytes that takes hours, and the server goes on.
const returnTime = time.Minute

// compaction deletes history, a part with each request.
type compaction struct {
	request  server.CompactRequest
	out      io.Writer
	progress *progress

	// first is the first answer, and last the last one. deleted is how many changes were deleted.
	first, last server.CompactResult
	deleted     int64
}

// run has the server compact, or else opens the database.
func (c *compaction) run(ctx context.Context, store server.StoreOptions, certs certsFlags) error {
	remedy := "name its --data-dir instead of --endpoint"
	if store.Endpoint == "" {
		err := c.askServer(ctx, certs)
		if !errors.Is(err, errNoServer) {
			return err
		}
		remedy = err.Error()
	}
	endpoint, err := usedEndpoint(store)
	if err != nil {
		return err
	}
	return explainInUse(c.openDatabase(ctx, endpoint), remedy)
}

// errNoServer means that no server answers, or that it refuses the kubeconfig.
var errNoServer = errors.New("no server can be asked with admin.kubeconfig")

// askServer has the server compact.
func (c *compaction) askServer(ctx context.Context, certs certsFlags) error {
	config, err := serverConfig(certs.config())
	if err != nil {
		return fmt.Errorf("%w: %w", errNoServer, err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if _, err := client.Discovery().ServerVersion(); err != nil {
		return fmt.Errorf("%w: %w", errNoServer, err)
	}
	err = c.repeat(ctx, func(request server.CompactRequest) (result server.CompactResult, err error) {
		post := client.Discovery().RESTClient().Post().AbsPath(server.CompactPath).
			Param("keep", request.Keep.String()).Param("resource", request.Resource)
		if request.UpTo > 0 {
			post = post.Param("upTo", strconv.FormatInt(request.UpTo, 10))
		}
		response := post.Do(ctx)
		err = response.Error() // which has the message of the server's Status, unlike that of Raw
		if err == nil {
			var answer []byte
			if answer, err = response.Raw(); err == nil {
				err = json.Unmarshal(answer, &result)
			}
		}
		if err != nil {
			err = fmt.Errorf("the server at %s: %w", config.Host, err)
		}
		return result, err
	})
	if err != nil {
		return err
	}
	return c.print()
}

// openDatabase compacts the database of an endpoint, which a server may use if it is PostgreSQL.
func (c *compaction) openDatabase(ctx context.Context, endpoint string) (err error) {
	if err := checkSource(endpoint); err != nil {
		return err
	}
	var driver sqlstore.Driver
	rewrite := func(context.Context) error { return nil }
	isAlone := false
	err = withDatabase(endpoint,
		func(path string) (err error) {
			if err := sqlite.ReleaseReserve(path); err != nil {
				return err
			}
			file, err := sqlite.Open(ctx, path, sqlite.Options{})
			if err == nil {
				driver, rewrite, isAlone = file, file.Rewrite, true
			}
			return err
		},
		func(dsn string) (err error) {
			driver, err = postgres.Open(ctx, dsn, postgres.Options{})
			return err
		})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, driver.Close()) }()
	histories, err := driver.Histories(ctx)
	if err != nil {
		return err
	}
	compacted := sqlstore.New(driver, sqlstore.Options{Retention: commonRetention(histories), Alone: isAlone})
	if err := c.repeat(ctx, func(request server.CompactRequest) (server.CompactResult, error) {
		result, err := server.Compact(ctx, compacted, request)
		if err == nil && result.IsDeleted && !result.Done {
			err = rewrite(ctx)
		}
		return result, err
	}); err != nil {
		return err
	}
	return c.print()
}

// repeat makes requests until the work is done.
func (c *compaction) repeat(
	ctx context.Context, do func(server.CompactRequest) (server.CompactResult, error),
) error {
	defer c.progress.end()
	began := c.progress.clock()
	var deletedAt time.Time
	for requests := 0; ; requests++ {
		result, err := do(c.request)
		c.deleted += result.Deleted
		if requests == 0 {
			c.first = result
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("interrupted: %d of about %d changes are deleted: run the command again to go on",
				c.deleted, c.first.Older)
		case err != nil && c.deleted > 0:
			return fmt.Errorf("%d of about %d changes are deleted: run the command again to go on: %w",
				c.deleted, c.first.Older, err)
		case err != nil:
			return err
		}
		now := c.progress.clock()
		if result.IsDeleted && deletedAt.IsZero() {
			deletedAt = now
		}
		c.last, c.request.UpTo = result, result.UpTo
		if result.Done || !deletedAt.IsZero() && now.Sub(deletedAt) >= returnTime {
			return nil
		}
		c.progress.showDue(func() string { return c.line(now.Sub(began)) })
	}
}

// line returns how far it is.
func (c *compaction) line(took time.Duration) string {
	freed := max(0, c.first.BeforeBytes-c.last.SizeBytes)
	if c.last.IsDeleted {
		return fmt.Sprintf("returning space: %s returned, %s left in the file",
			bytesText(freed), bytesText(c.last.SizeBytes-c.last.UsedBytes))
	}
	total := max(c.first.Older, c.deleted)
	return fmt.Sprintf("deleting history %s%d changes left, %.0f a second, %s free in the file",
		progressBar(c.deleted, total), total-c.deleted, float64(c.deleted)/max(took.Seconds(), 1),
		bytesText(c.last.SizeBytes-c.last.UsedBytes))
}

// print prints the result, and how to return what the file keeps.
func (c *compaction) print() error {
	r := c.last
	if len(r.Kept) > 0 {
		fmt.Fprintf(c.out, "left out, because they keep their history for longer: %s; "+
			"delete that with --resource NAME, or '*' for all\n", strings.Join(r.Kept, ", "))
	}
	result := fmt.Sprintf("compacted up to revision %d: %d changes are deleted", r.CompactedRevision, c.deleted)
	if c.deleted == 0 && c.first.Younger > 0 {
		result = fmt.Sprintf("nothing is deleted: "+
			"the history has %d changes, all younger than --keep %s: --keep 0 deletes them too", c.first.Younger, c.request.Keep)
	}
	_, err := fmt.Fprintf(c.out, "%s; the database has %s, %s less\n",
		result, bytesText(r.SizeBytes), bytesText(max(0, c.first.BeforeBytes-r.SizeBytes)))
	if !r.Done {
		_, err = fmt.Fprintf(c.out, "the file keeps %s for what is written next, "+
			"and the server returns it little by little: stop it and run \"byre compact\" again to return it at once\n",
			bytesText(r.SizeBytes-r.UsedBytes))
	}
	return err
}

// commonRetention returns what the servers' --retention is, as far as the database tells: the time for
// which they keep the history of most resources, and the shorter one of two. It is negative if that is
// for ever, and 0 if none has said so.
func commonRetention(histories []sqlstore.History) (common time.Duration) {
	count := make(map[time.Duration]int)
	for _, h := range histories {
		if h.RetainedFor != 0 {
			count[h.RetainedFor]++
		}
	}
	for age, n := range count {
		if most := count[common]; n > most || n == most && age > 0 && (common < 0 || age < common) {
			common = age
		}
	}
	return common
}
