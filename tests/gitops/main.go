// Program gitops prints what Argo CD and Flux conclude from a Kubernetes object, with their own
// libraries. Input and output are JSON.
//
//	gitops health ARGOCD_CM KUSTOMIZATION <object
//	    health of an object: by Argo CD with the resource customizations of a ConfigMap argocd-cm,
//	    by kstatus, and by the healthCheckExprs of a Flux Kustomization
//	gitops actions ARGOCD_CM <object
//	    the object as each action that Argo CD offers for it would change it
//	gitops diff <objects
//	    whether Argo CD finds a difference of `live` to `desired`; with `predicted`, the result of a
//	    dry run on the server, by server-side diff
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(arguments []string, input io.Reader, output io.Writer) error {
	text, err := io.ReadAll(input)
	if err != nil {
		return fmt.Errorf("failed to read standard input: %w", err)
	}
	var answer any
	switch {
	case len(arguments) == 3 && arguments[0] == "health":
		answer, err = health(text, arguments[1], arguments[2])
	case len(arguments) == 2 && arguments[0] == "actions":
		answer, err = actions(text, arguments[1])
	case len(arguments) == 1 && arguments[0] == "diff":
		answer, err = difference(text)
	default:
		err = errors.New("usage: gitops health ARGOCD_CM KUSTOMIZATION | actions ARGOCD_CM | diff")
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(output).Encode(answer)
}
