package main

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"byre/cmd/byre/transfer"
	"byre/sqlstore"
	"byre/sqlstore/etcd"
)

func newExportCommand() *cobra.Command {
	c := newTransferCommand()
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the objects of a database for a stock server with etcd",
		Args:  subcommandOnly,
		RunE:  help,
	}
	c.addFlags(cmd)
	cmd.AddCommand(&cobra.Command{
		Use:   "etcd SNAPSHOT",
		Short: "Write a snapshot file that \"etcdutl snapshot restore\" takes",
		Long: "Write a snapshot file that \"etcdutl snapshot restore\" of etcd 3.6 takes, for a\n" +
			"kube-apiserver of this version.\n\n" +
			"Objects keep their uid, their resourceVersion and the time of their creation. What\n" +
			"expires does so in etcd too, up to a minute later. There is no history. Values that\n" +
			"are encrypted at rest stay so: serve them with the same\n" +
			"--encryption-provider-config. Afterwards both sides are counted and hashed.\n\n" +
			"byre may run meanwhile; stop it first if nothing that it writes later is to be lost.",
		Example: "  byre export etcd cluster.db --data-dir /var/lib/byre\n  etcdutl snapshot restore cluster.db --data-dir /var/lib/etcd",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return c.exportTo(cmd, args[0]) },
	})
	return cmd
}

func (c *transferCommand) exportTo(cmd *cobra.Command, path string) (err error) {
	ctx, p := cmd.Context(), newProgress(cmd.ErrOrStderr(), "exporting")
	defer p.end()
	c.options.Now, c.options.Progress = time.Now(), p.add
	if err := checkUsedDatabase(c.store); err != nil {
		return err
	}
	dsn, err := c.store.DSN()
	if err != nil {
		return err
	}
	translator, err := transfer.New(c.options)
	if err != nil {
		return err
	}
	w, err := etcd.Create(path)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: remove it, or name another file", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	var found *transfer.Summary
	err = readDatabase(ctx, dsn, func(s sqlstore.Snapshot) error {
		p.total = s.ObjectCount
		found, err = translator.Export(s, w.Put)
		return err
	})
	if err != nil {
		return err
	}
	if err := w.Finish(ctx, found.Revision); err != nil {
		return err
	}
	p.begin("verifying")
	written, err := etcd.Open(ctx, path, etcd.Options{})
	if err != nil {
		return fmt.Errorf("verify the export: %w", err)
	}
	defer func() { err = errors.Join(err, written.Close()) }()
	p.total = int64(written.Len())
	copied, err := translator.Summarize(ctx, written)
	if err == nil {
		err = found.Compare(copied)
	}
	if err != nil {
		return fmt.Errorf("verify the export: %w: do not use the file", err)
	}
	p.end()
	return report(cmd.OutOrStdout(), "exported", found, copied.Revision)
}
