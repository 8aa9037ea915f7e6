// Package pki generates and renews the server's certificates and keys, under kubeadm's
// file names, and the administrator's kubeconfig.
//
//   - Ensure creates missing files, keeps valid ones, and renews a certificate that expires
//     within 30 days or lacks a requested name. It creates the CAs and the service account
//     key once and never replaces them; a call that ends between two files is completed by the
//     next one. Run renews likewise while the server runs.
//   - Only what this program has issued is renewed (see issued). Any other pair is used as it
//     is, whoever signed it; Report.Foreign names it. What a renewal replaces stays beside it,
//     with the suffix .bak, or .bak.1 and so on where another's file is.
//   - A directory without ca.key works as long as the certificates exist: the CA's key may
//     be kept elsewhere. A certificate that cannot be renewed is used all the same,
//     and a kubeconfig that cannot be updated stays: Report.NotRenewable and Report.Failed name
//     them.
//   - Only the owner can read keys and the kubeconfig. Each file is written under a
//     temporary name and renamed, so that no reader sees a partial file.
//   - Inspect changes nothing. Renew issues a named certificate anew, and NewKubeconfig
//     issues one for a user; neither replaces a CA.
//
// All servers of a cluster need the same CAs and service account key: each server gets a
// copy of the directory, or all use one directory, which Ensure locks.
//
// # Archives
//
// WriteArchive keeps the files of a directory in a file that is encrypted, so that it may lie beside a
// backup. The file is a tar archive, encrypted by age: "age --decrypt FILE | tar -x" reads it too.
// ReadArchive fails if the archive is not whole or was changed. The caller calls CheckArchiveEmpty before
// Archive.Extract, which replaces files.
//
// The package starts no goroutine. Run and Follow return when their context ends.
package pki
