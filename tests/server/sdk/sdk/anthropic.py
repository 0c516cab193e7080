from anthropic import Anthropic

client, messages = Anthropic(), [{"role": "user", "content": "hello"}]
print(client.messages.create(model="m", max_tokens=50, messages=messages).content[0].text)
with client.messages.stream(model="m", max_tokens=50, messages=messages) as stream:
    print("".join(stream.text_stream))
print(client.messages.count_tokens(model="m", messages=messages).input_tokens > 0)
print([model.id for model in client.models.list()])
