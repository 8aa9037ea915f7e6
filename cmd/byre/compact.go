package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"byre/apiserver"
	"byre/apiserver/options"
	"byre/sqlstore"
	"byre/sqlstore/postgres"
	"byre/sqlstore/sqlite"
)

func newCompactCommand() *cobra.Command {
	store := options.NewStoreOptions()
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
			"A running server does it, with admin.kubeconfig of --data-dir; if none answers, or if\n" +
			"--endpoint names a database, the database is opened instead; --retention is then the time for\n" +
			"which servers have kept the history of most resources. A SQLite file becomes smaller;\n" +
			"PostgreSQL keeps the space for what is written next, until VACUUM FULL.",
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
			certs := certsFlags{dataDir: store.DataDir, certDir: certDir}
			result, err := compact(cmd.Context(), store, certs, keep, resource)
			if err != nil {
				return err
			}
			if len(result.Kept) > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "left out, because they keep their history for longer: %s; delete that with --resource NAME, or '*' for all\n",
					strings.Join(result.Kept, ", "))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "compacted up to revision %d; the database has %s\n", result.CompactedRevision, bytesText(result.SizeBytes))
			return err
		},
	}
	store.AddDatabaseFlags(cmd.Flags())
	cmd.Flags().StringVar(&certDir, "cert-dir", "", "Directory of the certificates. If not set, pki below --data-dir.")
	cmd.Flags().DurationVar(&keep, "keep", keep, "How long history is kept, such as 10m or 2d; 0 deletes all. With the name of a --resource the default is 0.")
	cmd.Flags().StringVar(&resource, "resource", "", "Delete the history of this resource only, such as secrets or deployments.apps, also if it is kept for longer than that of others; * means all.")
	return cmd
}

// compact has the server compact, or else opens the database.
func compact(ctx context.Context, store options.StoreOptions, certs certsFlags, keep time.Duration, resource string) (apiserver.CompactResult, error) {
	remedy := "name its --data-dir instead of --endpoint"
	if store.Endpoint == "" {
		result, err := askToCompact(ctx, certs, keep, resource)
		if !errors.Is(err, errNoServer) {
			return result, err
		}
		remedy = err.Error()
	}
	endpoint, err := usedEndpoint(store)
	if err != nil {
		return apiserver.CompactResult{}, err
	}
	result, err := compactDatabase(ctx, endpoint, keep, resource)
	return result, explainInUse(err, remedy)
}

// errNoServer means that no server answers, or that it refuses the kubeconfig.
var errNoServer = errors.New("no server can be asked with admin.kubeconfig")

// askToCompact repeats the request until the server is done.
func askToCompact(ctx context.Context, certs certsFlags, keep time.Duration, resource string) (result apiserver.CompactResult, err error) {
	config, err := serverConfig(certs.config())
	if err != nil {
		return result, fmt.Errorf("%w: %w", errNoServer, err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return result, err
	}
	if _, err := client.Discovery().ServerVersion(); err != nil {
		return result, fmt.Errorf("%w: %w", errNoServer, err)
	}
	for !result.Done {
		response := client.Discovery().RESTClient().Post().AbsPath(apiserver.CompactPath).Param("keep", keep.String()).Param("resource", resource).Do(ctx)
		if err := response.Error(); err != nil { // which has the message of the server's Status, unlike that of Raw
			return result, fmt.Errorf("the server at %s: %w", config.Host, err)
		}
		answer, err := response.Raw()
		if err != nil {
			return result, fmt.Errorf("the server at %s: %w", config.Host, err)
		}
		if err := json.Unmarshal(answer, &result); err != nil {
			return result, fmt.Errorf("the server at %s: %w", config.Host, err)
		}
	}
	return result, nil
}

// compactDatabase opens the database of an endpoint, which a server may use if it is PostgreSQL.
func compactDatabase(ctx context.Context, endpoint string, keep time.Duration, resource string) (result apiserver.CompactResult, err error) {
	if err := checkSource(endpoint); err != nil {
		return result, err
	}
	var driver sqlstore.Driver
	err = withDatabase(endpoint,
		func(path string) (err error) {
			if err := sqlite.ReleaseReserve(path); err != nil {
				return err
			}
			driver, err = sqlite.Open(ctx, path, sqlite.Options{})
			return err
		},
		func(dsn string) (err error) {
			driver, err = postgres.Open(ctx, dsn, postgres.Options{})
			return err
		})
	if err != nil {
		return result, err
	}
	histories, err := driver.Histories(ctx)
	if err == nil {
		result, err = apiserver.Compact(ctx, sqlstore.New(driver, sqlstore.Options{Retention: commonRetention(histories)}), keep, resource)
	}
	return result, errors.Join(err, driver.Close())
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
