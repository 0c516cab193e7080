#!/bin/sh
# Asks a model from inside a sandbox. The key and the budget stay outside.
#
#   airlock secrets set anthropic                # once; asks for the key
#   examples/model.sh 0.05 'What is a sandbox?'  # dollars, question
#
# MODEL names another model. The door refuses (402) what could cost more than the budget, before
# anything is sent to the provider.
set -eu
budget=$1
question=$2
here=$(dirname "$0")
exec airlock run --llm=anthropic --budget-usd "$budget" \
    --env MODEL="${MODEL:-claude-haiku-4-5}" --input model.py="$here/model.py" -- \
    python3 model.py "$question"
